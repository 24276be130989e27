// Shared memory: a memfd that grows, and its mapping in this process. Each rank has one in every group, for
// the words and bytes of that group (layout.h). Each process has one for the tensors of all its groups
// (process_memory.h).
//
// The file has no name in any file system and is freed with its last descriptor. It grows by extents. An
// extent is a page-aligned range of the file that is mapped as one block and never moves, so pointers and
// offsets into it stay valid. Extent 0 starts with a table of all extents; a process that has the descriptor
// maps the later ones on demand. The file is sealed against shrinking, so that no process can cause a SIGBUS
// in another one. Pages that were never touched occupy no memory.
//
// In every process, an address and its offset in the file agree modulo the size of a huge page. So a huge
// page of the file is a huge page in each mapping.
//
// A process has at most one Segment per file, so ranks that are threads see the same addresses.
//
// A range can have an alias, a second address in this process.
//
// In a forked child, the segment becomes a private copy-on-write mapping at the same addresses. What the
// child writes is not visible to any other process, and destroying it there frees nothing of the parent's.
//
// Thread-safety: at(), offset_of() and the sizes from any thread; add_extent() from one thread at a time.
// Invariants: extents follow each other in the file without gaps; an entry of the table does not change once
// it is counted; the file is never smaller than the end of its last counted extent.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace lockstep::shm {

inline constexpr uint32_t kLayoutVersion = 3;

class Segment {
 public:
  // Reserved for the table at the start of extent 0. The creator can use the rest of extent 0.
  static constexpr size_t kTableBytes = 4096;
  static constexpr int kMaxExtents = 48;

  // Creates a segment of this process. `first_extent_bytes` includes the table and is rounded up to whole
  // pages. Throws SystemError.
  static std::shared_ptr<Segment> create(const std::string& name_for_debugging, size_t first_extent_bytes);
  // Maps a segment of a peer. If create() or attach() of this process has already returned an object for the
  // same file, and it still exists, returns that object. Throws MismatchError if the file is not a segment of
  // this layout version, SystemError if it cannot be mapped.
  static std::shared_ptr<Segment> attach(base::Fd memfd);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  int fd() const { return memfd_.get(); }
  // Whether this process created it.
  bool owner() const { return owner_; }
  // Whether this process was forked from the one that created or attached it.
  bool inherited() const { return inherited_.load(std::memory_order_relaxed); }

  // Maps the extent on first use. Throws MismatchError if the range is not within one extent.
  std::byte* at(uint64_t offset, size_t bytes) {
    const int known = known_.load(std::memory_order_acquire);
    for (int i = 0; i < known; ++i) {
      const Extent& extent = extents_[i];
      if (!extent.contains(offset, bytes)) continue;
      std::byte* data = extent.data.load(std::memory_order_acquire);
      if (data == nullptr) break;
      return data + (offset - extent.offset);
    }
    return map_and_find(offset, bytes);
  }

  // The offset of the range in the file, if it is within one mapped extent and has not been withdrawn.
  std::optional<uint64_t> offset_of(const void* pointer, size_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const int known = known_.load(std::memory_order_acquire);
    for (int i = 0; i < known; ++i) {
      const Extent& extent = extents_[i];
      const std::byte* data = extent.data.load(std::memory_order_acquire);
      if (data == nullptr) continue;
      const uint64_t offset = extent.offset + (address - reinterpret_cast<uintptr_t>(data));
      if (!extent.contains(offset, bytes)) continue;
      if (any_withdrawn_.load(std::memory_order_acquire) && is_withdrawn({offset, bytes})) break;
      return offset;
    }
    return std::nullopt;
  }

  // Owner only: extends the file, maps the new extent and returns its offset. `bytes` is rounded up to whole
  // pages. If it throws SystemError, nothing has changed.
  uint64_t add_extent(size_t bytes);
  // Owner only: backs the range with huge pages where it contains whole ones, for every process that maps it.
  // If the kernel does not support that, the pages stay small and nothing else changes. Call it before the
  // range is used.
  void prefer_huge_pages(uint64_t offset, size_t bytes);
  // Owner only: returns the whole pages inside the range to the kernel; they read as zeros afterwards. Does
  // nothing if the kernel does not support it.
  void release_pages(uint64_t offset, size_t bytes);

  struct Range {
    uint64_t offset;
    size_t bytes;
  };
  // Owner only: permanently separates the pages of this range from the other processes. Addresses and
  // contents do not change, even while other threads of this process write there. After it returns, writes of
  // other processes are not visible here, and what they read is undefined.
  void withdraw(Range range);
  bool is_withdrawn(Range range) const;  // or any part of it
  // For a range whose addresses are no longer used.
  void forget_withdrawn(Range range);

  // Owner only: maps the range, which consists of whole pages, at a second address of this process. The
  // memory that was there is lost; threads that read it meanwhile see either. If it throws SystemError,
  // nothing has changed.
  void add_alias(std::byte* address, Range range);
  // Replaces an alias by private memory, whose contents are undefined (replace_pages()). Also in a forked
  // child. Returns false, and changes nothing, if the kernel has no memory for it.
  bool remove_alias(std::byte* address);
  // Ends an alias whose contents remain, while no other process writes to it; threads of this process may.
  // Its pages are then private, but still mapped from the file: call replace_pages() when they are no longer
  // used. Returns false, and changes nothing, if the kernel does not allow it, or if a part in the middle was
  // withdrawn.
  bool separate_alias(std::byte* address);

  // Registers the handlers that forks need. They run after those that are registered later, and before them
  // in reverse, so what uses segments in its own handlers calls this first.
  static void watch_forks();

  size_t bytes_reserved() const;   // the size of the file
  size_t bytes_in_memory() const;  // that its pages occupy

 private:
  struct Table;  // as stored in the file

  struct Extent {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    std::atomic<std::byte*> data{nullptr};  // null until it is mapped

    // Without sums, which could overflow for offsets that a peer supplies.
    bool contains(uint64_t at, size_t length) const {
      return at - offset < bytes && length <= bytes - (at - offset);
    }
  };

  using FileKey = std::pair<dev_t, ino_t>;
  struct Registry;

  Segment(base::Fd memfd, bool owner, FileKey key);

  Table& table() const;
  uint64_t end() const;  // of the last known extent
  std::byte* map_and_find(uint64_t offset, size_t bytes);
  void read_extent_table();
  std::byte* map(const Extent& extent) const;
  bool map_privately(std::byte* data, Range range) const;
  // The addresses in this process of a range that is within one extent: in the extent, and in aliases.
  struct View {
    std::byte* data;
    Range range;
  };
  std::vector<View> views_of(Range range);
  void take_away(Range range);
  static Range common(Range a, Range b);
  static std::vector<Range> without(const std::vector<Range>& ranges, Range gone);
  void make_private(std::byte* data, Range range) const;
  void become_copy_on_write();

  const base::Fd memfd_;
  const bool owner_;
  const FileKey key_;
  std::mutex extents_mutex_;  // extents are read, mapped and added one at a time
  std::array<Extent, kMaxExtents> extents_;
  std::atomic<int> known_{0};  // how many of extents_ are filled in
  std::atomic<bool> inherited_{false};
  std::atomic<bool> any_withdrawn_{false};
  // Held while mappings are replaced, and during a fork: the child gets mappings that match these lists.
  mutable std::mutex mappings_mutex_;
  std::vector<Range> withdrawn_;  // whole pages
  std::map<std::byte*, Range> aliases_;
};

}  // namespace lockstep::shm
