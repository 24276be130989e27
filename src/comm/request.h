// The description of a call: which ranks give bytes, which ranks take them, and whether the takers copy or
// reduce. Everything that handles a call uses this struct: the collectives that build it, the transports that
// execute it, and the errors that describe it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <lockstep/process_group.h>

namespace lockstep::comm {

// The values are part of the shared-memory layout and of Gloo's fingerprints.
enum class Kind : uint8_t {
  AllReduce,
  Broadcast,
  Reduce,
  AllGather,
  Gather,
  Scatter,
  ReduceScatter,
  AllToAll,
  Barrier,
  Agreement,  // an exchange of the control channel
  Update,     // update.h
  Send,
  Receive
};

struct Pattern {
  const char* name;
  bool all_give;  // otherwise only the root
  bool all_take;  // otherwise only the root
  bool personal;  // each taker gets its own piece; otherwise all get the same
  bool reduces;   // takers combine the pieces of all givers; otherwise they copy them
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
      /* Agreement */ {"agreement", true, true, false, false},
      /* Update */ {"update", true, true, false, true},
      /* Send */ {"send", false, false, true, false},
      /* Receive */ {"recv", false, false, true, false},
  };
  return kPatterns[static_cast<size_t>(kind)];
}
inline constexpr size_t kKinds = static_cast<size_t>(Kind::Receive) + 1;

// A contiguous range of this rank's memory.
struct Piece {
  std::byte* data = nullptr;
  size_t bytes = 0;
};
using Pieces = c10::SmallVector<Piece, 4>;

// What both contain; of zero bytes if that is nothing.
inline Piece common(Piece a, Piece b) {
  auto* const from = a.data > b.data ? a.data : b.data;
  auto* const a_end = a.data + a.bytes;
  auto* const b_end = b.data + b.bytes;
  auto* const to = a_end < b_end ? a_end : b_end;
  return {from, from < to ? static_cast<size_t>(to - from) : 0};
}

inline constexpr int kNoRoot = -1;
inline constexpr int kAnyRank = -1;
// Request::root of an update, so that the ranks agree on which one it is: one with results, or one that only
// looks at the averages.
inline constexpr int kUpdates = 0, kMeasures = 1;

struct CallFacts;

struct Request {
  Kind kind = Kind::Barrier;
  const char* name = nullptr;  // for messages; null: the pattern's
  c10::ScalarType dtype = c10::ScalarType::Byte;
  c10::Device device = c10::kCPU;
  ReduceOp op = ReduceOp::Sum;  // for kinds that reduce
  int root = kNoRoot;
  // For a message: the other rank (kAnyRank: any sender), and the tag.
  int peer = kAnyRank;
  int tag = 0;
  // The number of elements, on which all ranks must agree: of what each rank gives or, if pieces are
  // personal, of each piece. All-to-all has no such number; there, the two ends of each piece are compared.
  uint64_t count = 0;
  // give: one piece for all ranks or, if personal, one for each rank. take: one piece from each rank or, if
  // the kind reduces, one. Empty if this rank gives or takes nothing. In a broadcast, the takers take from
  // the root only, and the root takes nothing. A message gives or takes one piece.
  Pieces give;
  Pieces take;
  // Of an all-to-all whose pieces need not have equal sizes. The same on all ranks.
  bool any_sizes = false;
  // Of an update: the memory of `take` is common to the ranks of a machine (common_memory.h).
  bool takes_together = false;
  // Of an update with Avg: how many ranks it averages over; the others give zeros. 0: all.
  int participants = 0;
  // The pieces of `give` are adjacent in memory.
  bool give_is_contiguous = true;
  // Of an all-reduce of Float with Sum or Avg, if the transport narrows(): how elements are rounded on their
  // way between machines.
  c10::ScalarType wire = c10::ScalarType::Undefined;
  std::chrono::milliseconds timeout{0};  // 0: the group's
  // The owner of what this rank gives, if that is one large tensor. A transport may move its memory.
  c10::intrusive_ptr<c10::StorageImpl> storage;
  // Owners of the pieces' memory, for a call that outlives the scope of its caller.
  std::vector<at::Tensor> keep;

  // If this request is a part of another call: what is compared between the ranks, and described in errors,
  // instead of this request. It must outlive the request.
  const CallFacts* part_of = nullptr;

  const char* called() const { return name != nullptr ? name : pattern_of(kind).name; }
};

inline bool is_message(const Request& request) {
  return request.kind == Kind::Send || request.kind == Kind::Receive;
}
inline bool is_giver(const Request& request, int rank) {
  return pattern_of(request.kind).all_give || rank == request.root;
}
inline bool is_taker(const Request& request, int rank) {
  if (request.kind == Kind::Broadcast) return rank != request.root;
  return pattern_of(request.kind).all_take || rank == request.root;
}

const char* name_of(ReduceOp op);

// "all_reduce of 1000 Float, Sum"; "send of 10 Float to rank 1, tag 0".
std::string describe(const Request& request);
// The same for a call of which only these facts are known. `name`: null for the pattern's.
struct CallFacts {
  Kind kind = Kind::Barrier;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  ReduceOp op = ReduceOp::Sum;
  int root = kNoRoot;
  uint64_t count = 0;
  const char* name = nullptr;
  uint64_t number = 0;  // of the collective in its group; 0 if it has none. Not part of the description
};
std::string describe(const CallFacts& call);
CallFacts facts_of(const Request& request);

}  // namespace lockstep::comm
