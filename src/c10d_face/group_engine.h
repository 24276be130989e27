// The engine of ranks on several machines: the hybrid transport of a group (comm/transport.h).
//
// A transport has no notification of a call that is complete. So helper threads wait: one for the
// collectives, in their order, and one for each message. A Work that is complete does not refer to the group:
// a Work that the user keeps must not keep the group's store.
//
// In a forked child, starting or waiting for an operation throws UsageError.
#pragma once

#include <memory>

#include "c10d_face/engine.h"
#include "comm/group.h"

namespace lockstep::c10d_face {

class GroupEngine final : public Engine {
 public:
  // What all engines of a group share; the group may own it.
  class Shared;
  using SharedPtr = std::shared_ptr<Shared>;
  static SharedPtr share();

  // The group's transport must allow messages to be started while another thread starts collectives, and need
  // nothing of Request::keep but that it exists.
  GroupEngine(std::shared_ptr<ProcessGroup::Impl> group, SharedPtr shared);

  std::chrono::milliseconds timeout() const override { return group_->timeout; }
  uint64_t calls() const override { return group_->transport->calls(); }
  // Cannot receive from any rank (comm::kAnyRank).
  WorkPtr start(comm::Request request, WorkInfo info) override;
  WorkPtr start(comm::Request first, std::function<comm::Request()> second, WorkInfo info) override;
  std::unique_ptr<RollCall> roll_call() override;
  void fail(const std::string& kind, const std::string& text) noexcept override;

  const std::shared_ptr<ProcessGroup::Impl>& group() const { return group_; }

 private:
  class Line;
  class Operation;
  class Roll;

  const std::shared_ptr<ProcessGroup::Impl> group_;
  const SharedPtr shared_;
};

}  // namespace lockstep::c10d_face
