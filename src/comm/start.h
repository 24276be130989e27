// Hands a call to the backend of its group, in exchange for a Work.
#pragma once

#include <fmt/format.h>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/no_sigpipe.h"
#include "comm/failure.h"
#include "comm/fingerprint.h"
#include "comm/group.h"
#include "comm/wire_tags.h"
#include "comm/work_state.h"

namespace lockstep::comm {

// What there is to a call besides the backend's part of it.
struct Outline {
  const char* name;  // by which it was called
  Fingerprint call;
  std::vector<at::Tensor> travelling = {};  // kept alive while the backend works
  std::function<void()> finish = {};        // brings what travelled into the caller's tensors
  std::vector<at::Tensor> result = {};      // what Work::result() gives
};

// What the two below have in common. `addition` is the end of the call's description.
template <class Backend>
Work hand_over(const std::shared_ptr<ProcessGroup::Impl>& group, Outline outline, std::string addition,
               Backend&& backend) {
  auto state = std::make_shared<Work::State>();
  state->group = group;
  state->call = {.number = outline.call.number,
                 .what = describe(outline.call, outline.name) + std::move(addition)};
  state->travelling = std::move(outline.travelling);
  state->finish = std::move(outline.finish);
  state->result = std::move(outline.result);
  std::optional<base::NoSigpipe> quiet;
  if (group->native == nullptr) quiet.emplace();  // Gloo writes messages in the caller's thread
  try {
    state->c10d = backend(*group->c10d, *state);
  } catch (...) {
    throw_failure(*group, state->call);
  }
  return Work(std::move(state));
}

// `backend` starts the call on the c10d backend that it is given.
template <class Backend>
Work start_collective(const std::shared_ptr<ProcessGroup::Impl>& group, Outline outline, Backend&& backend) {
  outline.call.number = ++group->calls;
  const auto call = outline.call;
  return hand_over(group, std::move(outline), "", [&](c10d_backend& c10d, Work::State&) {
    if (group->agreement) group->agreement->tell(c10d, call);
    return backend(c10d);
  });
}

// `backend` is also given the tag on which the message is to travel.
template <class Backend>
Work start_message(const std::shared_ptr<ProcessGroup::Impl>& group, Outline outline, int peer, int tag,
                   Backend&& backend) {
  const auto call = outline.call;
  auto sides =
      fmt::format(" {} rank {}, tag {}", call.kind == Fingerprint::Kind::Send ? "to" : "from", peer, tag);
  return hand_over(group, std::move(outline), std::move(sides), [&](c10d_backend& c10d, Work::State& state) {
    state.point_to_point = true;
    if (!group->agreement) return backend(c10d, tag);
    state.announcement.emplace(c10d, call, peer, tag);
    return backend(c10d, data_tag(tag, call));
  });
}

}  // namespace lockstep::comm
