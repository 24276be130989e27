// This rank's view of the words and bytes that all ranks of a group share in one lane.
//
// Guarded by the endpoint's lock, except for ring_all(), which is thread-safe.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "shm/layout.h"
#include "shm/mismatch.h"

namespace lockstep::shm {

class Board {
 public:
  using Segments = std::vector<std::shared_ptr<Segment>>;
  // `segments`: each rank's segment in this group. `memories`: the memory of each rank's process.
  Board(int rank, Lane lane, Segments segments, Segments memories, bool crowded);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  size_t chunk_bytes() const { return crowded_ ? kCrowdedChunkBytes : kChunkBytes; }

  Segment& segment(int rank) const { return *segments_[rank]; }
  Segment& memory(int rank) const { return *memories_[rank]; }
  RankWords& words(int rank) const { return *reinterpret_cast<RankWords*>(bases_[rank] + kWordsAt); }
  CallSlot& call(int rank, uint64_t number) const {
    return reinterpret_cast<CallSlot*>(bases_[rank] + kCallsAt)[number % kCallsInFlight];
  }
  ClaimWords& claims(uint64_t number) const { return words(0).claims[number % kCallsInFlight]; }
  std::byte* staging(int rank, uint64_t round) const {
    return bases_[rank] + kStagingAt + round % kStagingSlots * chunk_bytes();
  }
  // Messages from `from` to `to`.
  Outbox& outbox(int from, int to) const { return reinterpret_cast<Outbox*>(bases_[from] + kOutboxesAt)[to]; }

  using Counter = Word RankWords::*;
  uint64_t read(Counter counter, int rank) const {
    return (words(rank).*counter).value.load(std::memory_order_seq_cst);
  }
  bool all_reached(Counter counter, uint64_t value) const {
    for (int rank = 0; rank < world_size_; ++rank) {
      if (read(counter, rank) < value) return false;
    }
    return true;
  }
  uint64_t least(Counter counter) const {
    uint64_t least = UINT64_MAX;
    for (int rank = 0; rank < world_size_; ++rank) least = std::min(least, read(counter, rank));
    return least;
  }
  // Raises this rank's counter. Threads that sleep until every rank (of `among`, if given) has reached a
  // value are woken only by the last rank to reach it.
  void raise(Counter counter, uint64_t value);
  template <class Ranks>
  void raise(Counter counter, uint64_t value, const Ranks& among) {
    auto& mine = (words(rank_).*counter).value;
    const auto before = mine.load(std::memory_order_relaxed);
    mine.store(value, std::memory_order_seq_cst);
    if (!has_sleepers()) return;
    for (const int other : among) {
      if (read(counter, other) <= before) return;
    }
    ring_all();
  }

  // Whether all ranks have arrived at this call.
  bool all_arrived(uint64_t number) const {
    for (int rank = 0; rank < world_size_; ++rank) {
      if (!has_arrived(rank, number)) return false;
    }
    return true;
  }
  bool has_arrived(int rank, uint64_t number) const {
    return call(rank, number).call.number.load(std::memory_order_seq_cst) > number;
  }

  // Throws FailedPeer if any rank has published a failure.
  void throw_if_peer_failed() const {
    for (int rank = 0; rank < world_size_; ++rank) {
      if (words(rank).failure.present.load(std::memory_order_seq_cst) != 0) throw FailedPeer{rank};
    }
  }

  bool has_sleepers() const {
    for (int rank = 0; rank < world_size_; ++rank) {
      if (words(rank).bell.sleepers.load(std::memory_order_seq_cst) != 0) return true;
    }
    return false;
  }
  void ring_all() const;
  void ring(int rank) const;

 private:
  int rank_;
  int world_size_;
  Segments segments_;
  Segments memories_;
  std::vector<std::byte*> bases_;  // of each rank's lane
  std::vector<int> all_ranks_;
  bool crowded_;  // more ranks than CPUs
};

}  // namespace lockstep::shm
