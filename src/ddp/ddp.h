// The implementation of DistributedDataParallel: what happens around each forward pass, and after each
// backward pass.
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

namespace ddp {

// What a rank does under Join that needs all ranks.
enum class Act : char { Nothing, Forward, Step, Clip };  // Nothing: it has no input left

struct Announced {
  reducer::Turn turn;  // the ranks that have input
  Act act;             // what they do
};

// An optimizer whose steps need all ranks: those without input left take part, too.
class SharedOptimizer {
 public:
  // In the steps of other ranks, of which `leader` is one.
  virtual void shadow_step(int leader) = 0;
  virtual void shadow_clip(int leader) = 0;

 protected:
  ~SharedOptimizer() = default;
};

}  // namespace ddp

struct DdpBase::Impl final : reducer::Owner {
  Impl(detail::ModelView view, std::shared_ptr<ProcessGroup> with, DdpOptions chosen);

  detail::ModelView model;
  detail::NamedTensors parameters;  // without the ignored ones, each once
  // A handle: in the next step, it may refer to another generation of the group.
  const std::shared_ptr<ProcessGroup> group;
  const DdpOptions options;
  const std::shared_ptr<NoSync::Switch> sync = std::make_shared<NoSync::Switch>();
  CommHook hook;
  // Null if the world size is 1: then there is nothing to do.
  std::shared_ptr<reducer::Reducer> reducer;
  reducer::Hold hold = reducer::Hold::Nothing;
  bool holds_narrow = false;
  ddp::SharedOptimizer* optimizer = nullptr;  // the one for which gradients are held
  void hold_gradients(reducer::Hold what, bool narrow, ddp::SharedOptimizer* for_whom);
  std::vector<bool> averaged;  // which of the parameters the reducer averages
  ddp::Sanity sanity;

  // Adapts to the current generation of the group, which may have other ranks.
  void follow_group();
  reducer::Turn whole_group() const { return {.participants = group->world_size(), .leader = 0}; }
  void refuse_under_join(const char* call) const;

  // Under Join.
  bool joining = false;
  std::optional<reducer::Turn> last_turn;  // of the last step that any rank took
  // Notifies the others of what this rank does next; all ranks of the group must call it. Throws
  // MismatchError if those that have input do not do the same.
  ddp::Announced announce(ddp::Act act);
  // Takes part in what the others do.
  void shadow(const ddp::Announced& announced);

  // Adopts the current contents of the module: compares them with the other ranks', makes them equal as
  // init_sync says, and averages their gradients from now on. All ranks must call it.
  void wrap(detail::ModelView view);
  detail::NamedTensors buffers() const;
  void refuse_lonely_batch_norm() const;
  void refuse_shared_parameters_without_optimizer() const;
  void sync_buffers(const reducer::Turn& turn);

  // Whether the reducer no longer fits the parameters: some were unfrozen, loaded, or converted to another
  // dtype or device.
  bool outdated() const;
  bool keeps_reducer() const;
  // Creates a reducer for the current parameters. Does not communicate; compare_models_if_changed() compares
  // the models later.
  void make_reducer();
  void compare_models_if_changed();
  void verify_now_and_then();

  // reducer::Owner
  bool syncs_bypassed() const override;
  void after_pass(bool synchronised, bool bypassed) override;
  std::vector<std::string> replaced(const std::vector<std::string>& names) const override;
  void average_unplanned();
  void warn_of_other_parameters();

  // State of the current forward pass.
  bool forward_syncs = false;
  reducer::Turn turn;
  int64_t forwards = 0;  // the number of synchronised ones
  bool compared = true;  // the models were compared since the reducer was created
  bool warned_of_others = false;
};

}  // namespace lockstep
