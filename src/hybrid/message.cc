#include "hybrid/message.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/env.h"
#include "comm/announcement.h"
#include "comm/diagnose.h"
#include "comm/failure.h"
#include "comm/lookout.h"
#include "comm/wire_tags.h"

namespace lockstep::hybrid {

namespace {

class Started final : public Work::State {
 public:
  Started(ProcessGroup::Impl& owner, comm::Link& link, comm::Request&& described)
      : State(std::move(described)), facts_(owner), lookout_(owner, nullptr, 0, request) {
    const bool sends = request.kind == comm::Kind::Send;
    const auto piece = sends ? request.give[0] : request.take[0];
    const auto mine = comm::fingerprint_of(request, 0);
    if (base::env_flag("LOCKSTEP_CHECK_CALLS", true))
      announcement_.emplace(link, mine, request.peer, request.tag);
    if (piece.bytes == 0) return;
    const int tag = comm::data_tag(request.tag, mine);
    auto memory = std::make_shared<const std::vector<at::Tensor>>(request.keep);
    transfer_ = sends ? link.send(request.peer, tag, piece.data, piece.bytes, std::move(memory))
                      : link.receive(request.peer, tag, piece.data, piece.bytes, std::move(memory));
  }

  void complete() override {
    try {
      try {
        finish([this] { return lookout_.hopeless(); });
      } catch (...) {
        lookout_.report();
        throw;
      }
    } catch (...) {
      comm::throw_diagnosis(facts_, comm::describe(request), 0);
    }
  }
  bool is_done() override { return (!announcement_ && !transfer_) || comm::is_hopeless(facts_); }

 private:
  void finish(const std::function<bool()>& give_up) {
    if (announcement_) announcement_->verify(give_up);
    announcement_.reset();
    if (transfer_) transfer_->wait(give_up);
    transfer_.reset();
  }

  ProcessGroup::Impl& facts_;
  comm::Lookout lookout_;
  std::optional<comm::Announcement> announcement_;
  comm::TransferPtr transfer_;
};

}  // namespace

std::shared_ptr<Work::State> start_remote_message(ProcessGroup::Impl& group, comm::Link& link,
                                                  comm::Request&& request) {
  comm::refuse_if_failed(group);
  try {
    return std::make_shared<Started>(group, link, std::move(request));
  } catch (...) {
    comm::throw_diagnosis(group, comm::describe(request), 0);
  }
}

}  // namespace lockstep::hybrid
