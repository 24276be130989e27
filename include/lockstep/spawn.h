// Starts the ranks of a job from inside a program: no launcher needed.
#pragma once

#include <functional>

#include <lockstep/cxx20.h>

namespace lockstep {

// As Python's torch.multiprocessing.spawn: runs body(rank) in `nprocs` new processes on this machine and
// returns when all have ended. init_process_group() inside the body finds rank, world size and master from
// the environment that spawn gives each process.
//
// The first rank that fails is the one reported: its error is thrown again here (same class for lockstep's
// errors, Error for others, PeerLostError when it was killed or called exit), and the other ranks are
// stopped. When it failed because another rank left early or did not answer, the message begins with that
// one.
//
// The ranks share a random token of their own (LOCKSTEP_TOKEN), and may open as many files as the hard limit
// allows, up to 65536.
//
// The processes are forked: they see what the caller has in memory, and nothing they change comes back. Call
// it before the program starts threads of its own and before its first backward(); tensor arithmetic is fine.
void spawn(int nprocs, std::function<void(int rank)> body);

}  // namespace lockstep
