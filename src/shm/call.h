// One collective under way on this rank.
#pragma once

#include <cstdint>
#include <functional>

#include <c10/util/SmallVector.h>

#include "comm/request.h"
#include "comm/update.h"
#include "shm/kernels.h"
#include "shm/operation.h"

namespace lockstep::shm {

using comm::Kind;
using comm::Piece;
using comm::Request;

// How the engine carries out a call. All ranks choose the same.
enum class Algorithm : uint8_t {
  Exchange,  // exchange.h: each rank reads what it takes
  Claims,    // all_reduce.h: all memory is registered, so any rank can reduce any chunk for all ranks
  Parts,     // all_reduce.h: each rank reduces its part of each staged chunk; then all ranks read all parts
  Update     // update.h
};

// How many of the chunks that any rank can reduce a thread claims.
enum class Effort : uint8_t {
  OwnPart,  // its rank's share: the caller has other work, and the other ranks should do theirs
  All       // everything that is left: the caller waits anyway
};

enum class Stage : uint8_t {
  Queued,
  Arrived,  // visible to the other ranks
  Running,  // all ranks have arrived
  Finished  // this rank has done its part
};

// Throws UsageError if the operation is not defined for the dtype.
Kernel kernel_for(c10::ScalarType dtype, ReduceOp op);

struct Call : Operation {
  // The request must outlive the call.
  explicit Call(Request& described)
      : request(described),
        kernel(comm::pattern_of(described.kind).reduces ? kernel_for(described.dtype, described.op)
                                                        : nullptr) {
    timeout = described.timeout;
  }

  Request& request;
  const Kernel kernel;  // of kinds that reduce
  // For a call whose request depends on the results of earlier calls: makes the request when those have
  // finished. Called with the endpoint's lock held. Until then, only the kind of `request` is set.
  std::function<Request()> prepare;
  comm::Transform* transform = nullptr;  // of an update
  // A call to start together with this one, directly before it.
  Call* predecessor = nullptr;

  // The rest is set by the engine.
  uint64_t number = 0;
  uint64_t issued_in_other_lane = 0;  // calls that this rank had made in the other lane before this one
  // Of an exchange on a group that has failed, if its caller knows that.
  bool knows_of_failure = false;
  Stage stage = Stage::Queued;
  Algorithm algorithm = Algorithm::Exchange;
  bool relocated = false;            // what this rank gives was moved into registered memory (relocated.h)
  bool exposed = false;              // other ranks read this rank's registered memory
  bool reads_registered = false;     // the call accesses registered memory, which a failed owner withdraws
  c10::SmallVector<int, 8> stagers;  // ranks that send their bytes through staging slots
  bool streams_results = false;      // with stream_bytes() (copy.h)
  size_t round_bytes = 0;            // of each piece, per round
  uint64_t first_round = 0;          // in the group's numbering
  uint64_t rounds = 0;
  uint64_t staged = 0, reduced = 0, pulled = 0;  // rounds of this call, by this rank
  uint64_t claimed = 0;                          // chunks claimed by this rank

  Call* next = nullptr;  // in the endpoint's queue
};

// All that this rank gives, if that is contiguous.
inline Piece given(const Request& request) {
  const auto& pieces = request.give;
  if (pieces.empty()) return {};
  return {pieces.front().data,
          static_cast<size_t>(pieces.back().data + pieces.back().bytes - pieces.front().data)};
}

}  // namespace lockstep::shm
