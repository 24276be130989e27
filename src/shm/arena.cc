#include "shm/arena.h"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <vector>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "shm/pages.h"

namespace lockstep::shm {

namespace {

constexpr size_t kSmallAlignment = 64;
// Smaller blocks are never registered in a call (layout.h), so no other process writes to them. Larger ones
// do not share pages with others, so that their pages can be withdrawn.
constexpr size_t kPageAlignedFrom = size_t{4} << 10;
constexpr size_t kReleasedFrom = size_t{1} << 20;
// Huge pages are committed when a block is allocated. With this limit, a request that is too large by mistake
// does not commit all memory of the machine.
constexpr size_t kHugePagesUpTo = size_t{1} << 30;
constexpr size_t kSmallestExtent = size_t{4} << 20;
// Larger than any address space, and small enough that rounding cannot overflow.
constexpr size_t kLargestBlock = size_t{1} << 62;

constexpr size_t round_up(uint64_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Arena::Arena(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {
  if (!segment_->owner()) throw UsageError("memory can be allocated in a rank's own segment only");
}

Arena::Block Arena::allocate(size_t bytes) {
  // Large blocks do not share pages with others, so that their pages can be returned.
  const size_t unit = bytes >= kPageAlignedFrom ? page_bytes() : kSmallAlignment;
  return allocate(bytes, unit, {bytes >= kHugePageBytes ? kHugePageBytes : unit});
}

Arena::Block Arena::allocate_for_alias(const std::byte* address, size_t bytes) {
  return allocate(bytes, page_bytes(),
                  {kHugePageBytes, reinterpret_cast<uintptr_t>(address) % kHugePageBytes});
}

Arena::Block Arena::allocate(size_t bytes, size_t unit, Start start) {
  if (segment_->inherited()) {
    throw UsageError(
        base::compose({.what = "a forked process cannot allocate shared memory in the groups of its parent",
                       .hint = "make a new group in the child, after the fork"}));
  }
  if (bytes > kLargestBlock) {
    throw SystemError(base::compose({.what = fmt::format("cannot allocate {} bytes of shared memory", bytes),
                                     .evidence = base::errno_text(ENOMEM)}));
  }
  const auto range = reserve(round_up(std::max<size_t>(bytes, 1), unit), start);
  if (range.bytes <= kHugePagesUpTo) segment_->prefer_huge_pages(range.offset, range.bytes);
  return {.offset = range.offset, .data = segment_->at(range.offset, range.bytes), .bytes = bytes};
}

Arena::Range Arena::reserve(size_t bytes, Start start) {
  const std::lock_guard lock(mutex_);
  auto range = take_free(bytes, start);
  if (!range) {
    grow(bytes, start.alignment);
    range = take_free(bytes, start);
  }
  used_.emplace(range->offset, range->bytes);
  in_use_ += range->bytes;
  return *range;
}

void Arena::free(uint64_t offset) {
  if (segment_->inherited()) return;
  Range range{};
  {
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(offset);
    if (found == used_.end()) {
      throw UsageError(fmt::format("no block of shared memory starts at offset {}", offset));
    }
    range = {found->first, found->second};
    used_.erase(found);
    in_use_ -= range.bytes;
  }
  // Without the lock: the range is in neither list now, so no other thread can get it.
  const bool withdrawn = segment_->is_withdrawn(range);
  if (withdrawn || range.bytes >= kReleasedFrom) segment_->release_pages(range.offset, range.bytes);
  // Not reused: a process that was stopped may still write to this part of the file.
  if (withdrawn) {
    segment_->forget_withdrawn(range);
    return;
  }
  const std::lock_guard lock(mutex_);
  insert_free(range);
}

void Arena::withdraw(Range range) { segment_->withdraw(range); }

size_t Arena::bytes_in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

// Takes the smallest free range that fits.
std::optional<Arena::Range> Arena::take_free(size_t bytes, Start wanted) {
  for (auto candidate = free_by_size_.lower_bound({bytes, 0}); candidate != free_by_size_.end();
       ++candidate) {
    const auto [length, offset] = *candidate;
    const size_t skipped =
        (wanted.remainder + wanted.alignment - offset % wanted.alignment) % wanted.alignment;
    const uint64_t start = offset + skipped;
    if (skipped > length - bytes) continue;
    erase_free(free_.find(offset));
    if (skipped > 0) insert_free({offset, skipped});
    if (skipped + bytes < length) insert_free({start + bytes, length - skipped - bytes});
    return Range{start, bytes};
  }
  return std::nullopt;
}

void Arena::grow(size_t bytes, size_t alignment) {
  // Extents are aligned to pages only.
  const size_t needed =
      round_up(bytes, page_bytes()) + (alignment > page_bytes() ? alignment - page_bytes() : 0);
  size_t added = std::max({needed, 2 * last_extent_bytes_, kSmallestExtent});
  uint64_t offset = 0;
  try {
    offset = segment_->add_extent(added);
  } catch (const SystemError&) {
    if (added == needed) throw;
    added = needed;  // a limit may allow the smaller extent
    offset = segment_->add_extent(added);
  }
  last_extent_bytes_ = added;
  extent_starts_.insert(offset);
  insert_free({offset, added});
}

void Arena::insert_free(Range range) {
  auto next = free_.lower_bound(range.offset);
  if (next != free_.end() && range.offset + range.bytes == next->first &&
      !extent_starts_.contains(next->first)) {
    range.bytes += next->second;
    const auto after = std::next(next);
    erase_free(next);
    next = after;
  }
  if (next != free_.begin() && !extent_starts_.contains(range.offset)) {
    const auto before = std::prev(next);
    if (before->first + before->second == range.offset) {
      range = {before->first, before->second + range.bytes};
      erase_free(before);
    }
  }
  free_.emplace(range.offset, range.bytes);
  free_by_size_.emplace(range.bytes, range.offset);
}

void Arena::erase_free(std::map<uint64_t, size_t>::iterator range) {
  free_by_size_.erase({range->second, range->first});
  free_.erase(range);
}

}  // namespace lockstep::shm
