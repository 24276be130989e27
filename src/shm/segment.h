// Shared memory: a memfd that grows, and its mapping in this process. Each rank has one in every group, for
// the words and bytes of that group (layout.h), and each process has one for the tensors of all its groups
// (process_memory.h).
//
// The file has no name in any file system and disappears with its last descriptor. It grows by extents: an
// extent is a page-aligned range of the file that is mapped in one piece and stays where it is until the end,
// so that pointers into it and offsets of it never go stale. The first bytes of extent 0 hold a table of all
// extents; whoever has the descriptor maps the later ones from it, on demand. The file is sealed against
// shrinking, so that no process can make another one's access a SIGBUS. Pages that nobody touches cost
// nothing.
//
// An address and its offset in the file agree modulo the size of a huge page, in every process: where the
// file has a huge page, so has each mapping of it.
//
// Within a process there is at most one Segment of each file: ranks that are threads see the same addresses.
//
// A child that is forked inherits a picture of it: the same addresses, but what the child writes stays with
// the child. It shares nothing with anybody, and takes nothing away from anybody when it is destroyed.
//
// Thread-safety: at(), offset_of() and the sizes from any thread; add_extent() from one thread at a time.
// Invariants: extents lie in the file one after the other, without gaps; an entry of the table never changes
// once it is counted; the file is never smaller than the end of its last counted extent.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace lockstep::shm {

size_t page_bytes();  // of this system
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

inline constexpr uint32_t kLayoutVersion = 3;

class Segment {
 public:
  // What is reserved for the table at the start of extent 0; the rest of extent 0 is the creator's to use.
  static constexpr size_t kTableBytes = 4096;
  static constexpr int kMaxExtents = 48;

  // The caller's own. `first_extent_bytes` counts the table and is rounded up to whole pages. Throws
  // SystemError.
  static std::shared_ptr<Segment> create(const std::string& name_for_debugging, size_t first_extent_bytes);
  // A peer's. The object that create() or an earlier attach() of this process made of the same file, while
  // that one is alive. Throws MismatchError when the file is no segment of this layout version, SystemError
  // when it cannot be mapped.
  static std::shared_ptr<Segment> attach(base::Fd memfd);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  int fd() const { return memfd_.get(); }
  // Whether this process created it.
  bool owner() const { return owner_; }
  // Whether this process was forked after that, or after attaching.
  bool inherited() const { return inherited_.load(std::memory_order_relaxed); }

  // Maps the extent when it is used for the first time. Throws MismatchError when the range is in no extent.
  std::byte* at(uint64_t offset, size_t bytes) {
    const int known = known_.load(std::memory_order_acquire);
    for (int i = 0; i < known; ++i) {
      const Extent& extent = extents_[i];
      if (!extent.holds(offset, bytes)) continue;
      std::byte* data = extent.data.load(std::memory_order_acquire);
      if (data == nullptr) break;
      return data + (offset - extent.offset);
    }
    return map_and_find(offset, bytes);
  }

  // Where in the file the range is, if it lies in one extent that is mapped, and has not been withdrawn.
  std::optional<uint64_t> offset_of(const void* pointer, size_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const int known = known_.load(std::memory_order_acquire);
    for (int i = 0; i < known; ++i) {
      const Extent& extent = extents_[i];
      const std::byte* data = extent.data.load(std::memory_order_acquire);
      if (data == nullptr) continue;
      const uint64_t offset = extent.offset + (address - reinterpret_cast<uintptr_t>(data));
      if (!extent.holds(offset, bytes)) continue;
      if (any_withdrawn_.load(std::memory_order_acquire) && is_withdrawn({offset, bytes})) break;
      return offset;
    }
    return std::nullopt;
  }

  // Owner: makes the file longer and returns the offset of what is new, which is mapped here already. `bytes`
  // is rounded up to whole pages. Throws SystemError, and has then changed nothing.
  uint64_t add_extent(size_t bytes);
  // Owner: makes the whole huge pages inside the range such, in every process that maps it. Where the kernel
  // cannot or will not, they stay small, and nothing else changes. To be called before the range is used.
  void prefer_huge_pages(uint64_t offset, size_t bytes);
  // Owner: gives the whole pages inside the range back to the kernel; they read as zeros afterwards. Where
  // that is impossible nothing happens.
  void release_pages(uint64_t offset, size_t bytes);

  struct Range {
    uint64_t offset;
    size_t bytes;
  };
  // Owner: takes the pages of this range away from the other processes, for good. Its addresses and contents
  // stay as they are, also while other threads of this process write there; but from its return on, what
  // other processes write does not arrive here any more. What they read is undefined.
  void withdraw(Range range);
  bool is_withdrawn(Range range) const;  // any part of it
  // Of a range whose addresses are not used any more.
  void forget_withdrawn(Range range);

  size_t bytes_reserved() const;   // the size of the file
  size_t bytes_in_memory() const;  // what its pages occupy

 private:
  struct Table;  // as it is in the file

  struct Extent {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    std::atomic<std::byte*> data{nullptr};  // null until somebody needs it

    // Written so that no sum can overflow, whatever a peer asks for.
    bool holds(uint64_t at, size_t length) const {
      return at - offset < bytes && length <= bytes - (at - offset);
    }
  };

  using FileKey = std::pair<dev_t, ino_t>;
  struct Registry;

  Segment(base::Fd memfd, bool owner, FileKey key);

  Table& table() const;
  uint64_t end() const;  // of the last known extent
  std::byte* map_and_find(uint64_t offset, size_t bytes);
  void learn_extents();
  std::byte* map(const Extent& extent) const;
  bool map_privately(std::byte* data, Range range) const;
  void take_away(Range range);
  static std::vector<Range> without(const std::vector<Range>& ranges, Range gone);
  void make_private(const Extent& extent, Range range) const;
  void become_picture();

  const base::Fd memfd_;
  const bool owner_;
  const FileKey key_;
  std::mutex growing_;  // extents are learned, mapped and added one at a time
  std::array<Extent, kMaxExtents> extents_;
  std::atomic<int> known_{0};  // how many of extents_ are filled in
  std::atomic<bool> inherited_{false};
  std::atomic<bool> any_withdrawn_{false};
  mutable std::mutex withdrawing_;
  std::vector<Range> withdrawn_;  // whole pages
};

}  // namespace lockstep::shm
