#include "shm/segment.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <fmt/format.h>
#include <map>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/log.h"
#include "shm/copy.h"
#include "shm/pages.h"

namespace lockstep::shm {

namespace {

constexpr std::array<char, 8> kMagic = {'l', 'o', 'c', 'k', 's', 't', 'e', 'p'};

[[noreturn]] void throw_not_a_segment(const std::string& evidence) {
  throw MismatchError(
      base::compose({.what = "a rank sent a descriptor that is not shared memory of this version of lockstep",
                     .evidence = evidence,
                     .hint = "start the same build of the program for every rank"}));
}

[[noreturn]] void throw_mapping_error(size_t bytes, int error) {
  throw_system_error(fmt::format("cannot map {} bytes of shared memory", bytes), error,
                     error == ENOMEM ? "check the limits `ulimit -v` and vm.max_map_count" : "");
}

struct stat status_of(const base::Fd& file) {
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) throw_system_error("cannot get the status of shared memory", errno);
  return status;
}

// The start of the Table below without atomics. attach() reads it before it maps anything.
struct TableStart {
  std::array<char, 8> magic;
  uint32_t layout_version;
  uint32_t count;
  uint64_t first_offset;
  uint64_t first_bytes;
};

}  // namespace

struct Segment::Table {
  struct Entry {
    std::atomic<uint64_t> offset;
    std::atomic<uint64_t> bytes;
  };

  std::array<char, 8> magic;
  uint32_t layout_version;
  std::atomic<uint32_t> count;  // written last
  std::array<Entry, kMaxExtents> entries;
};

// The segments of this process, by file. Never destroyed, because segments in static objects may outlive it.
struct Segment::Registry {
  std::mutex mutex;
  std::map<FileKey, std::weak_ptr<Segment>> segments;
  std::vector<std::shared_ptr<Segment>> held;  // during a fork

  static Registry& instance() {
    static auto& registry = *make();
    return registry;
  }

  // A child must not inherit a locked mutex, or mappings that another thread is just replacing.
  static Registry* make() {
    ::pthread_atfork([] { instance().before_fork(); }, [] { instance().after_fork(); },
                     [] { instance().detach_in_child(); });
    return new Registry;
  }

  void before_fork() {
    mutex.lock();
    for (const auto& [key, weak] : segments) {
      if (auto segment = weak.lock()) held.push_back(std::move(segment));
    }
    for (const auto& segment : held) segment->mappings_mutex_.lock();
  }

  void after_fork() {
    const auto released = std::exchange(held, {});  // destroyed last: that may lock the mutex
    for (const auto& segment : released) segment->mappings_mutex_.unlock();
    mutex.unlock();
  }

  // Runs in a forked child, before anything else.
  void detach_in_child() {
    for (const auto& segment : held) segment->become_copy_on_write();
    segments.clear();
    after_fork();
  }

  std::shared_ptr<Segment> find(const FileKey& key) {
    const std::lock_guard lock(mutex);
    const auto found = segments.find(key);
    return found == segments.end() ? nullptr : found->second.lock();
  }

  // If two threads attach to the same file at once, both get the segment of the first one.
  std::shared_ptr<Segment> insert(const std::shared_ptr<Segment>& segment) {
    const std::lock_guard lock(mutex);
    auto& entry = segments[segment->key_];
    if (auto earlier = entry.lock()) return earlier;
    entry = segment;
    return segment;
  }

  void remove(const FileKey& key) {
    const std::lock_guard lock(mutex);
    const auto found = segments.find(key);
    if (found != segments.end() && found->second.expired()) segments.erase(found);
  }
};

std::shared_ptr<Segment> Segment::create(const std::string& name_for_debugging, size_t first_extent_bytes) {
  auto memfd = make_memfd(name_for_debugging);
  // Sealed while it is empty. From here on, no peer can shrink the file or add a seal that forbids growing.
  if (::fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    throw_system_error("cannot seal shared memory", errno);
  }
  const auto status = status_of(memfd);
  std::shared_ptr<Segment> segment(new Segment(std::move(memfd), true, {status.st_dev, status.st_ino}));
  segment->add_extent(std::max(first_extent_bytes, kTableBytes));
  return Registry::instance().insert(segment);
}

std::shared_ptr<Segment> Segment::attach(base::Fd memfd) {
  static_assert(offsetof(Table, count) == offsetof(TableStart, count));
  static_assert(offsetof(Table, entries) == offsetof(TableStart, first_offset));

  const auto status = status_of(memfd);
  const FileKey key{status.st_dev, status.st_ino};
  if (auto existing = Registry::instance().find(key)) return existing;

  const int seals = ::fcntl(memfd.get(), F_GET_SEALS);
  if (seals < 0) throw_not_a_segment("it is not a memfd");
  if ((seals & F_SEAL_SHRINK) == 0) throw_not_a_segment("it is not sealed against shrinking");
  TableStart start = {};
  const auto length = ::pread(memfd.get(), &start, sizeof start, 0);
  if (length < 0) throw_system_error("cannot read shared memory", errno);
  if (length != sizeof start || start.magic != kMagic)
    throw_not_a_segment("it does not start with \"lockstep\"");
  if (start.layout_version != kLayoutVersion) {
    throw_not_a_segment(
        fmt::format("it has layout version {}, ours {}", start.layout_version, kLayoutVersion));
  }
  if (start.count < 1 || start.first_offset != 0 || start.first_bytes < kTableBytes ||
      start.first_bytes % page_bytes() != 0 || start.first_bytes > static_cast<uint64_t>(status.st_size)) {
    throw_not_a_segment("its table of extents is damaged");
  }
  std::shared_ptr<Segment> segment(new Segment(std::move(memfd), false, key));
  Extent& first = segment->extents_[0];
  first.bytes = start.first_bytes;
  first.data.store(segment->map(first), std::memory_order_release);
  segment->known_.store(1, std::memory_order_release);
  return Registry::instance().insert(segment);
}

Segment::Segment(base::Fd memfd, bool owner, FileKey key)
    : memfd_(std::move(memfd)), owner_(owner), key_(key) {}

Segment::~Segment() {
  // Before the file is closed: after that, another file may get its inode number.
  Registry::instance().remove(key_);
  for (const auto& extent : extents_) {
    if (std::byte* data = extent.data.load()) ::munmap(data, extent.bytes);
  }
}

Segment::Table& Segment::table() const { return *reinterpret_cast<Table*>(extents_[0].data.load()); }

uint64_t Segment::end() const {
  const int known = known_.load(std::memory_order_acquire);
  return known == 0 ? 0 : extents_[known - 1].offset + extents_[known - 1].bytes;
}

std::byte* Segment::map(const Extent& extent) const {
  // Reserves more address space than needed, and uses the part with the right alignment.
  const size_t room = extent.bytes + kHugePageBytes;
  void* reserved = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw_mapping_error(extent.bytes, errno);
  auto* const begin = static_cast<std::byte*>(reserved);
  const size_t before = (extent.offset - reinterpret_cast<uintptr_t>(begin)) % kHugePageBytes;
  const size_t after = room - before - extent.bytes;
  void* data = ::mmap(begin + before, extent.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      memfd_.get(), static_cast<off_t>(extent.offset));
  if (data == MAP_FAILED) {
    const int error = errno;
    ::munmap(begin, room);
    throw_mapping_error(extent.bytes, error);
  }
  if (before > 0) ::munmap(begin, before);
  if (after > 0) ::munmap(begin + before + extent.bytes, after);
  return static_cast<std::byte*>(data);
}

// Replaces the shared mapping by a private one of the same bytes. The kernel does that atomically: a thread
// that accesses the range meanwhile sees one mapping or the other, with the same contents.
bool Segment::map_privately(std::byte* data, Range range) const {
  return ::mmap(data, range.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                memfd_.get(), static_cast<off_t>(range.offset)) != MAP_FAILED;
}

void Segment::make_private(std::byte* data, Range range) const {
  // If that fails, the child must crash rather than write into the parent's memory.
  if (!map_privately(data, range)) ::mprotect(data, range.bytes, PROT_NONE);
}

void Segment::become_copy_on_write() {
  inherited_.store(true);
  std::vector<View> views;
  for (int i = 0; i < known_.load(); ++i) {
    const auto& extent = extents_[i];
    if (std::byte* data = extent.data.load()) views.push_back({data, {extent.offset, extent.bytes}});
  }
  for (const auto& [address, range] : aliases_) views.push_back({address, range});
  for (const auto& view : views) {
    // Withdrawn ranges are private already, and their pages in the file are freed.
    std::vector<Range> shared = {view.range};
    for (const auto& gone : withdrawn_) shared = without(shared, gone);
    for (const auto& range : shared) make_private(view.data + (range.offset - view.range.offset), range);
  }
}

uint64_t Segment::add_extent(size_t bytes) {
  static_assert(sizeof(Table) <= kTableBytes);
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
  if (!owner_) throw UsageError("only the owner of shared memory can extend it");

  const std::lock_guard lock(extents_mutex_);
  const int number = known_.load(std::memory_order_relaxed);
  if (number == kMaxExtents) {
    throw SystemError(base::compose(
        {.what = fmt::format("cannot add {} bytes of shared memory", bytes),
         .evidence = fmt::format("it has {} extents with {} bytes, and this is the maximum", number, end()),
         .hint = "allocate shared memory in larger blocks"}));
  }
  Extent& extent = extents_[number];
  extent.offset = end();
  extent.bytes = whole_pages(std::max<size_t>(bytes, 1));
  if (extent.bytes > static_cast<uint64_t>(INT64_MAX) - extent.offset - kHugePageBytes) {
    throw_system_error(fmt::format("cannot add {} bytes of shared memory", bytes), EFBIG);
  }
  check_file_limit(extent.offset + extent.bytes);
  // Mapped before the file grows: if mapping failed afterwards, the sealed file could not be shrunk again.
  std::byte* data = map(extent);
  if (::ftruncate(memfd_.get(), static_cast<off_t>(extent.offset + extent.bytes)) != 0) {
    const int error = errno;
    ::munmap(data, extent.bytes);
    throw_system_error(fmt::format("cannot grow shared memory by {} bytes", extent.bytes), error);
  }
  extent.data.store(data, std::memory_order_release);
  if (number == 0) {
    auto* fresh = new (data) Table{};
    fresh->magic = kMagic;
    fresh->layout_version = kLayoutVersion;
  }
  auto& entry = table().entries[number];
  entry.offset.store(extent.offset, std::memory_order_relaxed);
  entry.bytes.store(extent.bytes, std::memory_order_relaxed);
  table().count.store(number + 1, std::memory_order_release);
  known_.store(number + 1, std::memory_order_release);
  return extent.offset;
}

// Checks and copies the new entries of the table, so that later writes of a peer have no effect.
void Segment::read_extent_table() {
  const uint32_t count = table().count.load(std::memory_order_acquire);
  if (count > kMaxExtents) throw_not_a_segment("its table of extents is damaged");
  const auto size = static_cast<uint64_t>(status_of(memfd_).st_size);
  for (uint32_t number = known_.load(std::memory_order_relaxed); number < count; ++number) {
    const auto& entry = table().entries[number];
    Extent& extent = extents_[number];
    extent.offset = entry.offset.load(std::memory_order_relaxed);
    extent.bytes = entry.bytes.load(std::memory_order_relaxed);
    if (extent.offset != end() || extent.bytes == 0 || extent.bytes % page_bytes() != 0 ||
        extent.bytes > size - extent.offset) {
      throw_not_a_segment("its table of extents is damaged");
    }
    known_.store(static_cast<int>(number) + 1, std::memory_order_release);
  }
}

std::byte* Segment::map_and_find(uint64_t offset, size_t bytes) {
  const std::lock_guard lock(extents_mutex_);
  read_extent_table();
  for (int i = 0; i < known_.load(std::memory_order_relaxed); ++i) {
    Extent& extent = extents_[i];
    if (!extent.contains(offset, bytes)) continue;
    std::byte* data = extent.data.load(std::memory_order_acquire);
    if (data == nullptr) {
      data = map(extent);
      extent.data.store(data, std::memory_order_release);
    }
    return data + (offset - extent.offset);
  }
  throw MismatchError(
      base::compose({.what = "a rank refers to shared memory that does not exist",
                     .evidence = fmt::format("{} bytes at {}, in a segment of {} bytes in {} extents", bytes,
                                             offset, end(), known_.load())}));
}

void Segment::prefer_huge_pages(uint64_t offset, size_t bytes) {
  const uint64_t first = (offset + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uint64_t last = (offset + bytes) / kHugePageBytes * kHugePageBytes;
  if (first >= last) return;
  std::byte* const data = at(first, last - first);
  collapse_pages(data, last - first);
}

void Segment::release_pages(uint64_t offset, size_t bytes) {
  const uint64_t page = page_bytes();
  const uint64_t first = (offset + page - 1) / page * page;
  const uint64_t last = (offset + bytes) / page * page;
  if (first >= last || inherited()) return;
  // A failure only costs memory.
  punch_hole(memfd_, first, last - first);
  if (any_withdrawn_.load(std::memory_order_acquire) && is_withdrawn({first, last - first})) {
    [[maybe_unused]] const int ignored = ::madvise(at(first, last - first), last - first, MADV_DONTNEED);
  }
}

Segment::Range Segment::common(Range a, Range b) {
  const auto from = std::max(a.offset, b.offset);
  const auto to = std::min(a.offset + a.bytes, b.offset + b.bytes);
  return {from, from < to ? to - from : 0};
}

std::vector<Segment::Range> Segment::without(const std::vector<Range>& ranges, Range gone) {
  std::vector<Range> left;
  for (const auto& range : ranges) {
    const auto end = range.offset + range.bytes, gone_end = gone.offset + gone.bytes;
    if (range.offset < std::min(end, gone.offset)) {
      left.push_back({range.offset, std::min(end, gone.offset) - range.offset});
    }
    if (std::max(range.offset, gone_end) < end) {
      left.push_back({std::max(range.offset, gone_end), end - std::max(range.offset, gone_end)});
    }
  }
  return left;
}

void Segment::forget_withdrawn(Range range) {
  const std::lock_guard lock(mappings_mutex_);
  withdrawn_ = without(withdrawn_, range);
  any_withdrawn_.store(!withdrawn_.empty(), std::memory_order_release);
}

bool Segment::is_withdrawn(Range range) const {
  const std::lock_guard lock(mappings_mutex_);
  return std::any_of(withdrawn_.begin(), withdrawn_.end(),
                     [&](const Range& gone) { return common(gone, range).bytes > 0; });
}

void Segment::withdraw(Range range) {
  if (inherited()) return;
  const uint64_t page = page_bytes();
  const uint64_t first = range.offset / page * page;
  const uint64_t last = (range.offset + range.bytes + page - 1) / page * page;
  const std::lock_guard lock(mappings_mutex_);
  // What was withdrawn before is private already, and the file has no bytes for it.
  std::vector<Range> left = {{first, last - first}};
  for (const auto& gone : withdrawn_) left = without(left, gone);
  withdrawn_.insert(withdrawn_.end(), left.begin(), left.end());
  any_withdrawn_.store(true, std::memory_order_release);
  for (const auto& part : left) take_away(part);
}

std::vector<Segment::View> Segment::views_of(Range range) {
  std::vector<View> views = {{at(range.offset, range.bytes), range}};
  for (const auto& [address, shown] : aliases_) {
    const auto part = common(shown, range);
    if (part.bytes > 0) views.push_back({address + (part.offset - shown.offset), part});
  }
  return views;
}

void Segment::take_away(Range range) {
  const auto views = views_of(range);
  for (const auto& view : views) {
    if (map_privately(view.data, view.range)) continue;
    base::log_warn(
        "cannot withdraw the shared memory of a failed group from the other ranks ({}): a rank that was "
        "stopped may still write to it",
        base::errno_text(errno));
    return;
  }
  // A private page is a page of the file until it is written to. The file's pages are freed step by step, so
  // that the range never occupies twice its memory (unless it has an alias).
  constexpr size_t kStep = size_t{16} << 20;
  const uint64_t last = range.offset + range.bytes;
  for (uint64_t begin = range.offset; begin < last; begin += kStep) {
    const Range step = {begin, std::min<uint64_t>(kStep, last - begin)};
    for (const auto& view : views) {
      const auto part = common(view.range, step);
      if (part.bytes > 0) copy_pages(view.data + (part.offset - view.range.offset), part.bytes);
    }
    punch_hole(memfd_, step.offset, step.bytes);
  }
}

void Segment::add_alias(std::byte* address, Range range) {
  const std::lock_guard lock(mappings_mutex_);
  const auto added = aliases_.emplace(address, range).first;
  if (::mmap(address, range.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memfd_.get(),
             static_cast<off_t>(range.offset)) == MAP_FAILED) {
    const int error = errno;
    aliases_.erase(added);
    throw_mapping_error(range.bytes, error);
  }
}

bool Segment::remove_alias(std::byte* address) {
  const std::lock_guard lock(mappings_mutex_);
  const auto alias = aliases_.find(address);
  if (!replace_pages(address, alias->second.bytes)) return false;
  aliases_.erase(alias);
  return true;
}

bool Segment::separate_alias(std::byte* address) {
  const std::lock_guard lock(mappings_mutex_);
  const auto alias = aliases_.find(address);
  const auto whole = alias->second;
  // What was withdrawn is private already, and the file has no bytes for it.
  std::vector<Range> shared = {whole};
  for (const auto& gone : withdrawn_) shared = without(shared, gone);
  // With several parts, the kernel might refuse the second one, and the first one would be private already.
  if (shared.size() > 1) return false;
  for (const auto& part : shared) {
    std::byte* const data = address + (part.offset - whole.offset);
    if (!map_privately(data, part)) return false;
    copy_pages(data, part.bytes);
  }
  aliases_.erase(alias);
  return true;
}

void Segment::watch_forks() { Registry::instance(); }

size_t Segment::bytes_reserved() const { return static_cast<size_t>(status_of(memfd_).st_size); }

size_t Segment::bytes_in_memory() const { return static_cast<size_t>(status_of(memfd_).st_blocks) * 512; }

}  // namespace lockstep::shm
