// Starts the ranks of a job from within a program, without a launcher.
#pragma once

#include <functional>

#include <lockstep/cxx20.h>

namespace lockstep {

// Like Python's torch.multiprocessing.spawn: runs body(rank) in `nprocs` new processes on this machine and
// returns when all of them have ended. init_process_group() inside the body reads rank, world size and master
// address from environment variables that spawn sets for each process.
//
// If ranks fail, spawn stops the other ranks and rethrows the error of the first rank that failed: with the
// same class for lockstep's errors, as Error for other exceptions, as PeerLostError if the rank was killed or
// called exit(). If that rank failed because another rank ended early or did not answer, the message names
// the other rank first.
//
// The ranks share a random token (LOCKSTEP_TOKEN). Their limit of open files is raised to the hard limit, at
// most 65536.
//
// The processes are forked: they have a copy of the caller's memory, and their changes to it are not visible
// to the caller. Call spawn before the program starts threads of its own and before its first backward();
// tensor arithmetic is fine.
void spawn(int nprocs, std::function<void(int rank)> body);

}  // namespace lockstep
