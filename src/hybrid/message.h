// A message from or to a rank on another machine.
#pragma once

#include <memory>

#include "comm/group.h"
#include "comm/link.h"
#include "comm/work.h"

namespace lockstep::hybrid {

// Does not block. `group` and `link` must outlive the Work.
std::shared_ptr<Work::State> start_remote_message(ProcessGroup::Impl& group, comm::Link& link,
                                                  comm::Request&& request);

}  // namespace lockstep::hybrid
