// One collective under way on this rank.
#pragma once

#include <cstdint>
#include <functional>

#include <c10/util/SmallVector.h>

#include "comm/request.h"
#include "shm/kernels.h"
#include "shm/operation.h"

namespace lockstep::shm {

using comm::Kind;
using comm::Piece;
using comm::Request;

// How the engine carries out a call; all ranks choose the same.
enum class Way : uint8_t {
  Exchange,  // exchange.h: everybody reads what it takes
  Claims,    // all_reduce.h: all memory is registered, so anybody can reduce any chunk for everybody
  Parts      // all_reduce.h: each rank reduces its part of each staged chunk, then all read the parts
};

// How much of the work that any rank could do a thread takes on.
enum class Effort : uint8_t {
  OwnPart,  // its rank's part: it has something else to do, or the next rank would find all done
  All       // as much as there is: it waits anyway
};

enum class Stage : uint8_t {
  Queued,
  Arrived,  // the others can see it
  Running,  // all ranks have arrived
  Finished  // this rank has done its part
};

// Throws UsageError where the operation means nothing for the dtype.
Kernel kernel_for(c10::ScalarType dtype, ReduceOp op);

struct Call : Operation {
  // The request must stay until the call is complete.
  explicit Call(Request& described)
      : request(described),
        kernel(comm::pattern_of(described.kind).reduces ? kernel_for(described.dtype, described.op)
                                                        : nullptr) {
    timeout = described.timeout;
  }

  Request& request;
  const Kernel kernel;  // of kinds that reduce
  // Set for a call whose request depends on the results of those before it: makes the request, once they are
  // finished. Called with the endpoint's lock held. Until then `request` has the kind only.
  std::function<Request()> prepare;
  // A call to be handed over together with this one, just before it.
  Call* before = nullptr;

  // The rest is the engine's.
  uint64_t number = 0;
  uint64_t other_lane = 0;        // calls that this rank had made in the other lane before this one
  bool knows_of_failure = false;  // set for exchanges of a group that has failed, as their callers know
  Stage stage = Stage::Queued;
  Way way = Way::Exchange;
  bool exposed = false;              // others read this rank's memory directly
  bool reads_registered = false;     // this rank reads, or all write, memory that its owner could take back
  c10::SmallVector<int, 8> stagers;  // the ranks whose bytes go through staging slots
  bool takes_past_caches = false;    // see copy.h
  size_t round_bytes = 0;            // of each piece, in one round
  uint64_t first_round = 0;          // in the group's count
  uint64_t rounds = 0;
  uint64_t staged = 0, reduced = 0, pulled = 0;  // rounds of this call that this rank has done
  uint64_t claimed = 0;                          // chunks that this rank has claimed

  Call* next = nullptr;  // in the endpoint's queue
};

}  // namespace lockstep::shm
