// Connects the ranks of a group over MPI.
#pragma once

#include <memory>

#include "base/deadline.h"
#include "comm/group.h"
#include "comm/link.h"

namespace lockstep::mpi {

// Initialises MPI, unless the program has, and makes a link between the ranks of the group. All of them must
// call it; the first time, they must be all processes of the MPI job. Blocks until all are connected. Throws
// on all ranks alike: UsageError if one of them cannot use MPI. Also throws the errors of the group's store,
// and std::runtime_error.
//
// If the engine has initialised MPI, a process that ends with exit(0) finalises it, and waits there for the
// other processes of the MPI job. After an error of a group, it does so only for a moment.
std::shared_ptr<comm::Link> connect(ProcessGroup::Impl& group, base::Deadline deadline);

}  // namespace lockstep::mpi
