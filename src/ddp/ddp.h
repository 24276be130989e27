// The inside of DistributedDataParallel: what happens around each forward pass, and after each backward pass.
#pragma once

#include <memory>
#include <optional>

#include <lockstep/ddp.h>

#include "ddp/sanity.h"
#include "reducer/reducer.h"

namespace lockstep {

struct NoSync::Switch {
  bool on = true;
};

struct DdpBase::Impl final : reducer::Owner {
  Impl(detail::ModelView view, std::shared_ptr<ProcessGroup> with, DdpOptions chosen);

  detail::ModelView model;
  detail::NamedTensors parameters;  // without those to be ignored, each once
  // A handle: may point at another generation of the group in the next step than in this one.
  const std::shared_ptr<ProcessGroup> group;
  const DdpOptions options;
  const std::shared_ptr<NoSync::Switch> sync = std::make_shared<NoSync::Switch>();
  CommHook hook;
  // Null in a world of one, where there is nothing to do.
  std::shared_ptr<reducer::Reducer> reducer;
  std::vector<bool> averaged;  // which of the parameters it averages
  ddp::Sanity sanity;

  // The group may have got other ranks since.
  void follow_group();
  reducer::Turn whole_group() const { return {.participants = group->world_size(), .leader = 0}; }
  void refuse_under_join(const char* call) const;

  // Under Join.
  bool joining = false;
  std::optional<reducer::Turn> last_turn;  // of the last step that anybody took
  // Tells the others whether this rank takes part in a step; all ranks of the group call it. Who does.
  reducer::Turn announce(bool takes_part);

  // Whatever the module holds now becomes the model: checked against the other ranks', made the same,
  // averaged.
  void wrap(detail::ModelView view);
  detail::NamedTensors buffers() const;
  void refuse_lonely_batch_norm() const;
  void sync_buffers(const reducer::Turn& turn);

  // The reducer's parameters are not the module's any more: some were unfrozen, or got another dtype or
  // device.
  bool outdated() const;
  // For these. Does not communicate; the models are compared when the ranks next meet.
  void make_reducer();
  void compare_models_if_changed();
  void verify_now_and_then();

  // reducer::Owner
  bool syncs_bypassed() const override;
  void after_pass(bool synchronised, bool bypassed) override;
  std::vector<std::string> replaced(const std::vector<std::string>& names) const override;
  void average_unplanned();
  void warn_of_other_parameters();

  // Of the forward pass under way.
  bool forward_syncs = false;
  reducer::Turn turn;
  int64_t forwards = 0;  // that were synchronised
  bool compared = true;  // the models, since the reducer was made
  bool warned_of_others = false;
};

}  // namespace lockstep
