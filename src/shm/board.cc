#include "shm/board.h"

#include <numeric>

#include "shm/bell.h"

namespace lockstep::shm {

Board::Board(int rank, std::vector<std::shared_ptr<Segment>> segments, size_t chunk_bytes)
    : rank_(rank), segments_(std::move(segments)), everybody_(segments_.size()), chunk_bytes_(chunk_bytes) {
  for (const auto& segment : segments_) bases_.push_back(segment->at(0, first_extent_bytes(world_size())));
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

bool Board::all_reached(Counter counter, uint64_t value) const {
  for (const int rank : everybody_) {
    if (read(counter, rank) < value) return false;
  }
  return true;
}

void Board::raise(Counter counter, uint64_t value) { raise(counter, value, everybody_); }

bool Board::all_arrived(uint64_t number) const {
  for (const int rank : everybody_) {
    if (!has_arrived(rank, number)) return false;
  }
  return true;
}

bool Board::anybody_sleeps() const {
  for (const int rank : everybody_) {
    if (control(rank).bell.sleepers.load(std::memory_order_seq_cst) != 0) return true;
  }
  return false;
}

void Board::ring_all() const {
  for (const int rank : everybody_) ring(rank);
}

void Board::ring(int rank) const { shm::ring(control(rank).bell); }

}  // namespace lockstep::shm
