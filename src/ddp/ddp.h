// The inside of DistributedDataParallel: what happens around each forward pass.
#pragma once

#include <memory>
#include <optional>

#include <lockstep/ddp.h>

#include "reducer/reducer.h"

namespace lockstep {

struct DdpBase::Impl {
  Impl(detail::ModelView view, std::shared_ptr<ProcessGroup> with, DdpOptions chosen);

  detail::ModelView model;
  detail::NamedTensors parameters;  // without those to be ignored, each once
  const std::shared_ptr<ProcessGroup> group;
  const DdpOptions options;
  const std::shared_ptr<bool> sync = std::make_shared<bool>(true);
  CommHook hook;
  // Null in a world of one, where there is nothing to do.
  std::shared_ptr<reducer::Reducer> reducer;
  std::vector<bool> averaged;  // which of the parameters it averages

  // Under Join.
  bool joining = false;
  std::optional<reducer::Turn> last_turn;  // of the last step that anybody took
  // Tells the others whether this rank takes part in a step; all ranks of the group call it. Who does.
  reducer::Turn announce(bool takes_part);

  detail::NamedTensors buffers() const;
  void make_reducer();
  void refuse_lonely_batch_norm() const;
  void sync_buffers(const reducer::Turn& turn);

  // Of the forward pass under way.
  bool forward_syncs = false;
  reducer::Turn turn;
  int64_t forwards = 0;  // that were synchronised
};

}  // namespace lockstep
