// Allocates memory that other ranks can reach: blocks inside the extents of the caller's own segment.
//
// It adds extents of its own and leaves extent 0 alone. Freed memory is used again before the segment grows;
// large blocks give their pages back to the kernel when they are freed.
//
// Thread-safety: all functions from any thread. It must be the only one to add extents to its segment.
// Invariants: a block lies in one extent; every byte of the arena's extents is in exactly one block, used or
// free; two free blocks of one extent never touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "shm/segment.h"

namespace lockstep::shm {

class Arena {
 public:
  // Throws UsageError when the segment is a peer's.
  explicit Arena(std::shared_ptr<Segment> segment);

  struct Block {
    uint64_t offset;  // in the segment
    std::byte* data;
    size_t bytes;  // as asked for
  };
  // Aligned to 64 bytes, to a page from 4 KiB on, to a huge page from its size on. Between that and 1 GiB it
  // is made of huge pages if the kernel has some, and takes its memory at once then, not when it is touched.
  // The contents are undefined. Zero bytes are allowed: the block has an address of its own. Throws
  // SystemError when the segment cannot grow.
  Block allocate(size_t bytes);
  // `offset` as allocate() returned it; anything else is a UsageError. In a forked child nothing happens: the
  // block is the parent's.
  void free(uint64_t offset);
  // What other processes write into these bytes does not arrive here any more. The block that they are in
  // stays where it is, with what it holds, until it is freed; it is not used again.
  void withdraw(Segment::Range range);
  Segment& segment() const { return *segment_; }
  const std::shared_ptr<Segment>& shared_segment() const { return segment_; }

  // What is not free, with what alignment costs.
  size_t bytes_in_use() const;

 private:
  using Range = Segment::Range;

  Range claim(size_t bytes, size_t alignment);
  std::optional<Range> take(size_t bytes, size_t alignment);
  void grow(size_t bytes, size_t alignment);
  void insert_free(Range range);
  void erase_free(std::map<uint64_t, size_t>::iterator range);

  const std::shared_ptr<Segment> segment_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, size_t> used_;           // offset to bytes
  std::map<uint64_t, size_t> free_;                     // offset to bytes
  std::set<std::pair<size_t, uint64_t>> free_by_size_;  // the same ranges
  std::set<uint64_t> extent_starts_;                    // over which free ranges do not grow together
  size_t last_extent_bytes_ = 0;
  size_t in_use_ = 0;
};

}  // namespace lockstep::shm
