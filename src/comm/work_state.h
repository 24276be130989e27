// What a Work holds while its call is under way.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <lockstep/work.h>

#include "base/deadline.h"
#include "comm/announcement.h"
#include "comm/failure.h"
#include "comm/group.h"

namespace lockstep {

namespace comm {

// A call that takes longer is worth looking around for.
constexpr auto kUsualWait = std::chrono::milliseconds(400);

}  // namespace comm

struct Work::State {
  std::shared_ptr<ProcessGroup::Impl> group;
  comm::Call call;
  c10::intrusive_ptr<c10d::Work> c10d;
  // Gloo tears down its connections when a wait for a send or receive is given up; such a wait must be left
  // alone.
  bool point_to_point = false;
  // What the other side of a message is told of it, or is to tell; of collectives the group's agreement
  // knows.
  std::optional<comm::Announcement> announcement;
  base::Deadline usual = base::Deadline::in(comm::kUsualWait);  // until then nothing is suspicious
  // Runs once, in the first wait(), when the backend is done: brings what travelled into the caller's
  // tensors.
  std::function<void()> finish;
  std::vector<at::Tensor> travelling;  // kept alive until then
  std::vector<at::Tensor> result;
  std::exception_ptr error;
};

}  // namespace lockstep
