#include <exception>
#include <fmt/format.h>

#include <ATen/ATen.h>

#include "base/error_text.h"
#include "base/log.h"
#include "comm/control.h"
#include "comm/purpose.h"
#include "ddp/ddp.h"
#include "ddp/replicas.h"
#include "ddp/sync_batch_norm.h"

namespace lockstep {

namespace {

void restore_batch_norms(const detail::ModelView& model) {
  for (const auto& batch_norms : ddp::sync_groups_in(model)) batch_norms->restore();
}

}  // namespace

reducer::Turn DdpBase::Impl::announce(bool takes_part) {
  const auto present = comm::control_of(*group).gather<char>("Join, who takes part", takes_part ? 1 : 0);
  reducer::Turn who{.participants = 0, .leader = 0};
  for (int rank = group->world_size() - 1; rank >= 0; --rank) {
    if (present[rank] == 0) continue;
    ++who.participants;
    who.leader = rank;
  }
  if (who.participants == 0) return who;
  // Ranks that have run out of input stay out, so every change shows as a smaller number.
  if (who.participants < (last_turn ? last_turn->participants : group->world_size())) {
    for (const auto& batch_norms : ddp::sync_groups_in(model)) batch_norms->regroup(takes_part);
  }
  last_turn = who;
  return who;
}

Join::Join(DdpBase& ddp) : ddp_(ddp), exceptions_(std::uncaught_exceptions()) {
  auto& impl = *ddp_.impl_;
  if (impl.joining) throw UsageError("there is already a Join for this module; Joins do not nest");
  if (impl.hold != reducer::Hold::Nothing) {
    throw UsageError(base::compose(
        {.what = "a Join cannot be constructed",
         .evidence = "the model has a ShardedOptimizer, of which every rank must make every step",
         .hint = "use LibTorch's optimizer for uneven inputs, or drop_last in the sampler"}));
  }
  impl.follow_group();
  impl.joining = impl.reducer != nullptr;
  impl.last_turn.reset();
}

void Join::finish() {
  if (finished_) return;
  finished_ = true;
  auto& impl = *ddp_.impl_;
  if (!impl.joining) return;
  impl.joining = false;
  const comm::Purpose purpose("Join, until all ranks have finished");
  for (;;) {
    const auto turn = impl.announce(false);
    if (turn.participants == 0) break;
    impl.sync_buffers(turn);
    impl.reducer->shadow(turn);
  }
  impl.turn = impl.whole_group();
  restore_batch_norms(impl.model);
  // Ranks that finished early have missed the last steps.
  if (!impl.last_turn) return;
  auto model = impl.parameters;
  for (auto& buffer : impl.buffers()) model.push_back(std::move(buffer));
  ddp::broadcast_all(*impl.group, model, impl.last_turn->leader);
}

Join::~Join() {
  if (finished_) return;
  if (std::uncaught_exceptions() == exceptions_) {
    try {
      finish();
    } catch (const std::exception& error) {
      base::log_error("Join::finish failed: {}", error.what());
    }
    return;
  }
  // An exception is leaving the scope, so this rank no longer takes part.
  auto& impl = *ddp_.impl_;
  if (!impl.joining) return;
  impl.joining = false;
  impl.turn = impl.whole_group();
  restore_batch_norms(impl.model);
  impl.group->poison(
      Error(base::compose({.what = "an exception has left the scope of a Join",
                           .where = fmt::format("rank {}/{}", impl.group->rank(), impl.group->world_size()),
                           .hint = "look at the output of that rank"})));
}

}  // namespace lockstep
