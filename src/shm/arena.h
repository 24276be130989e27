// Allocates memory that other ranks can access: blocks inside the extents of a segment of this process.
//
// The arena adds its own extents and does not use extent 0. Freed memory is reused before the segment grows.
// When a large block is freed, its pages are returned to the kernel.
//
// Thread-safe. Nothing else may add extents to its segment.
// Invariants: a block is within one extent; every byte of the arena's extents is in exactly one block, used
// or free; two free blocks of one extent are never adjacent.
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
  // Throws UsageError if the segment belongs to a peer.
  explicit Arena(std::shared_ptr<Segment> segment);

  struct Block {
    uint64_t offset;  // in the segment
    std::byte* data;
    size_t bytes;  // as requested
  };
  // Aligned to 64 bytes, from 4 KiB on to a page, from 2 MiB on to a huge page. A block of 2 MiB to 1 GiB
  // gets huge pages if the kernel has any; then its memory is committed at once, not on first access. The
  // contents are undefined. A block of zero bytes has its own address. Throws SystemError if the segment
  // cannot grow.
  Block allocate(size_t bytes);
  // Whole pages for an alias at `address`, which is aligned to a page: if the block has room for huge pages,
  // they are huge pages at both addresses.
  Block allocate_for_alias(const std::byte* address, size_t bytes);
  // `offset` as returned by allocate(); anything else is a UsageError. Does nothing in a forked child,
  // because the block belongs to the parent.
  void free(uint64_t offset);
  // Writes of other processes to this range are not visible here afterwards. The block that contains it keeps
  // its address and contents until it is freed, and is not reused.
  void withdraw(Segment::Range range);
  Segment& segment() const { return *segment_; }
  const std::shared_ptr<Segment>& shared_segment() const { return segment_; }

  // In used blocks, including padding for alignment.
  size_t bytes_in_use() const;

 private:
  using Range = Segment::Range;

  // A block starts at `remainder` modulo `alignment`.
  struct Start {
    size_t alignment, remainder = 0;
  };
  Block allocate(size_t bytes, size_t unit, Start start);
  Range reserve(size_t bytes, Start start);
  std::optional<Range> take_free(size_t bytes, Start start);
  void grow(size_t bytes, size_t alignment);
  void insert_free(Range range);
  void erase_free(std::map<uint64_t, size_t>::iterator range);

  const std::shared_ptr<Segment> segment_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, size_t> used_;           // offset to bytes
  std::map<uint64_t, size_t> free_;                     // offset to bytes
  std::set<std::pair<size_t, uint64_t>> free_by_size_;  // the same ranges
  std::set<uint64_t> extent_starts_;                    // free ranges are not merged across these
  size_t last_extent_bytes_ = 0;
  size_t in_use_ = 0;
};

}  // namespace lockstep::shm
