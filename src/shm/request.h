// What a collective asks of the engine: who gives which bytes, who takes them, and whether taking is copying
// or reducing. Every collective is one row of patterns below; the engine (exchange.h, all_reduce.h) knows no
// other differences between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include "shm/kernels.h"

namespace lockstep::shm {

enum class Kind : uint8_t {
  AllReduce,
  Broadcast,
  Reduce,
  AllGather,
  Gather,
  Scatter,
  ReduceScatter,
  AllToAll,
  Barrier
};

struct Pattern {
  const char* name;
  bool all_give;  // or only the root
  bool all_take;  // or only the root
  bool personal;  // each rank is given a piece of its own, or all are given the same
  bool reduces;   // takers combine what all give, or copy it
};

inline const Pattern& pattern_of(Kind kind) {
  static constexpr Pattern kPatterns[] = {
      /* AllReduce */ {"all_reduce", true, true, false, true},
      /* Broadcast */ {"broadcast", false, true, false, false},
      /* Reduce */ {"reduce", true, false, false, true},
      /* AllGather */ {"all_gather", true, true, false, false},
      /* Gather */ {"gather", true, false, false, false},
      /* Scatter */ {"scatter", false, true, true, false},
      /* ReduceScatter */ {"reduce_scatter", true, true, true, true},
      /* AllToAll */ {"all_to_all", true, true, true, false},
      /* Barrier */ {"barrier", true, true, false, false},
  };
  return kPatterns[static_cast<size_t>(kind)];
}

// A stretch of this rank's memory.
struct Piece {
  std::byte* data = nullptr;
  size_t bytes = 0;
};
using Pieces = c10::SmallVector<Piece, 4>;

inline constexpr int kNoRoot = -1;

struct Request {
  Kind kind = Kind::Barrier;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  Combine combine = Combine::Sum;
  Kernel kernel = nullptr;  // of kinds that reduce
  int root = kNoRoot;
  // Elements on which all ranks must agree: what each gives (or, when pieces are personal, what goes to
  // each). All-to-all has no such number; there, the two ends of each piece are compared.
  uint64_t count = 0;
  // Given: one piece for all ranks, or, when personal, one for each rank. Taken: one piece from each rank,
  // or, when reducing, one. Empty where this rank has no part. A broadcast's takers take from the root alone,
  // and its root takes nothing.
  Pieces give;
  Pieces take;
  // Given pieces lie one behind the other.
  bool give_is_contiguous = true;
};

inline bool is_giver(const Request& request, int rank) {
  return pattern_of(request.kind).all_give || rank == request.root;
}
inline bool is_taker(const Request& request, int rank) {
  if (request.kind == Kind::Broadcast) return rank != request.root;
  return pattern_of(request.kind).all_take || rank == request.root;
}

}  // namespace lockstep::shm
