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

const char* name_of(ddp::Act act) {
  switch (act) {
    case ddp::Act::Nothing:
      return "Join::finish";
    case ddp::Act::Forward:
      return "a forward pass";
    case ddp::Act::Step:
      return "ShardedOptimizer::step";
    case ddp::Act::Clip:
      return "ShardedOptimizer::clip_grad_norm";
  }
  return "";
}

[[noreturn]] void throw_different(int rank, ddp::Act act, const ddp::Announced& others) {
  throw MismatchError(
      base::compose({.what = "under Join, the ranks that have input left do not do the same",
                     .evidence = fmt::format("rank {} is in {}, rank {} in {}", rank, name_of(act),
                                             others.turn.leader, name_of(others.act)),
                     .hint = "each of them must make the same calls for each of its batches"}));
}

}  // namespace

ddp::Announced DdpBase::Impl::announce(ddp::Act act) {
  const auto acts = comm::control_of(*group).gather<ddp::Act>("Join, what the ranks do next", act);
  ddp::Announced all{.turn = {.participants = 0, .leader = 0}, .act = ddp::Act::Nothing};
  for (int rank = group->world_size() - 1; rank >= 0; --rank) {
    if (acts[rank] == ddp::Act::Nothing) continue;
    if (all.act != ddp::Act::Nothing && acts[rank] != all.act) throw_different(rank, acts[rank], all);
    ++all.turn.participants;
    all.turn.leader = rank;
    all.act = acts[rank];
  }
  const auto& who = all.turn;
  if (who.participants == 0) return all;
  // Ranks that have run out of input stay out, so every change shows as a smaller number.
  if (who.participants < (last_turn ? last_turn->participants : group->world_size())) {
    for (const auto& batch_norms : ddp::sync_groups_in(model)) {
      batch_norms->regroup(act != ddp::Act::Nothing);
    }
  }
  last_turn = who;
  return all;
}

void DdpBase::Impl::shadow(const ddp::Announced& announced) {
  switch (announced.act) {
    case ddp::Act::Nothing:
      break;
    case ddp::Act::Forward:
      sync_buffers(announced.turn);
      reducer->shadow(announced.turn);
      break;
    case ddp::Act::Step:
    case ddp::Act::Clip:
      if (optimizer == nullptr) {
        throw UsageError(base::compose(
            {.what = fmt::format("rank {} is in {}", announced.turn.leader, name_of(announced.act)),
             .where = fmt::format("rank {}/{}", group->rank(), group->world_size()),
             .evidence = "this rank has no ShardedOptimizer, and waits in Join::finish",
             .hint = "keep the optimizer until the Join has finished"}));
      }
      announced.act == ddp::Act::Step ? optimizer->shadow_step(announced.turn.leader)
                                      : optimizer->shadow_clip(announced.turn.leader);
      break;
  }
}

Join::Join(DdpBase& ddp) : ddp_(ddp), exceptions_(std::uncaught_exceptions()) {
  auto& impl = *ddp_.impl_;
  if (impl.joining) throw UsageError("there is already a Join for this module; Joins do not nest");
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
    const auto announced = impl.announce(ddp::Act::Nothing);
    if (announced.turn.participants == 0) break;
    impl.shadow(announced);
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
