#include "shm/board.h"

#include <numeric>

#include "shm/bell.h"

namespace lockstep::shm {

Board::Board(int rank, Lane lane, Segments segments, Segments memories, bool crowded)
    : rank_(rank),
      world_size_(static_cast<int>(segments.size())),
      segments_(std::move(segments)),
      memories_(std::move(memories)),
      all_ranks_(segments_.size()),
      crowded_(crowded) {
  for (const auto& segment : segments_) {
    bases_.push_back(segment->at(0, first_extent_bytes(world_size())) + lane_at(lane, world_size()));
  }
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
}

void Board::raise(Counter counter, uint64_t value) { raise(counter, value, all_ranks_); }

void Board::ring_all() const {
  for (const int rank : all_ranks_) ring(rank);
}

void Board::ring(int rank) const { shm::ring(words(rank).bell); }

}  // namespace lockstep::shm
