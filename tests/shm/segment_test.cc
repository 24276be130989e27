// Shared-memory segments, in one process and across a fork.
#include "shm/segment.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <lockstep/error.h>

#include "shm/pages.h"

namespace lockstep::shm {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPage = 4096;
constexpr size_t kMiB = size_t{1} << 20;

base::Fd duplicate(int fd) { return base::Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// Runs `body` in a child; returns whether it returned true.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = false;
    try {
      good = body();
    } catch (const std::exception& error) {
      fmt::print(stderr, "child: {}\n", error.what());
    }
    std::fflush(stderr);
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
  return count;
}

// A segment that a faulty or malicious peer might send.
base::Fd forge(uint32_t version, uint32_t count, std::vector<uint64_t> table, size_t size,
               const char* magic = "lockstep", int seals = F_SEAL_SHRINK) {
  base::Fd file(::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::vector<char> bytes(16 + table.size() * 8);
  std::memcpy(bytes.data(), magic, 8);
  std::memcpy(bytes.data() + 8, &version, 4);
  std::memcpy(bytes.data() + 12, &count, 4);
  if (!table.empty()) std::memcpy(bytes.data() + 16, table.data(), table.size() * 8);
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(size)), 0);
  if (size > 0) {
    EXPECT_GT(::pwrite(file.get(), bytes.data(), std::min(bytes.size(), size), 0), 0);
  }
  if (seals != 0) {
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
  }
  return file;
}

TEST(Segment, CostsNothingUntilItIsTouched) {
  const auto before = open_descriptors();
  {
    const auto segment = Segment::create("test", 64 * kMiB + 1);
    EXPECT_TRUE(segment->owner());
    EXPECT_EQ(segment->bytes_reserved(), 64 * kMiB + kPage);
    EXPECT_LE(segment->bytes_in_memory(), 2 * kMiB);  // the table: at most one huge page
    std::memset(segment->at(32 * kMiB, kMiB), 1, kMiB);
    EXPECT_GE(segment->bytes_in_memory(), kMiB);
    segment->release_pages(32 * kMiB, kMiB);
    EXPECT_LE(segment->bytes_in_memory(), 2 * kMiB);
    EXPECT_EQ(*segment->at(32 * kMiB, 1), std::byte{0});
    EXPECT_NE(::fcntl(segment->fd(), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Segment, CannotShrinkNorBeSealedFurther) {
  const auto segment = Segment::create("test", kMiB);
  EXPECT_NE(::ftruncate(segment->fd(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(::fcntl(segment->fd(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_EQ(segment->add_extent(1), kMiB);
}

TEST(Segment, HasOneMappingInAProcess) {
  auto segment = Segment::create("test", kMiB);
  EXPECT_EQ(Segment::attach(duplicate(segment->fd())), segment);
  auto descriptor = duplicate(segment->fd());
  segment->at(kPage, 1)[0] = std::byte{7};
  const auto second = segment->add_extent(kMiB);
  segment->at(second, 1)[0] = std::byte{8};
  segment.reset();

  // The object has been destroyed; the file still exists.
  const auto again = Segment::attach(duplicate(descriptor.get()));
  EXPECT_FALSE(again->owner());
  EXPECT_EQ(Segment::attach(std::move(descriptor)), again);
  EXPECT_EQ(*again->at(kPage, 1), std::byte{7});
  EXPECT_EQ(*again->at(second, 1), std::byte{8});
  EXPECT_THROW(again->add_extent(kMiB), UsageError);
  EXPECT_THROW(Arena{again}, UsageError);
}

TEST(Segment, ThreadsThatAttachTogetherGetOneObject) {
  for (int round = 0; round < 50; ++round) {
    base::Fd descriptor;
    {
      const auto made = Segment::create("test", kPage);
      descriptor = duplicate(made->fd());
    }
    std::vector<std::shared_ptr<Segment>> seen(4);
    std::vector<std::thread> threads;
    for (auto& mine : seen) {
      threads.emplace_back([&] { mine = Segment::attach(duplicate(descriptor.get())); });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& mine : seen) EXPECT_EQ(mine, seen[0]);
  }
}

TEST(Segment, FindsOnlyWhatLiesInOneExtent) {
  const auto segment = Segment::create("test", 2 * kPage);
  const auto second = segment->add_extent(3 * kPage);
  ASSERT_EQ(second, 2 * kPage);
  EXPECT_NO_THROW(segment->at(0, 2 * kPage));
  EXPECT_NO_THROW(segment->at(second, 3 * kPage));
  EXPECT_NO_THROW(segment->at(second, 0));
  EXPECT_THROW(segment->at(second - 1, 2), MismatchError);
  EXPECT_THROW(segment->at(second, 3 * kPage + 1), MismatchError);
  EXPECT_THROW(segment->at(5 * kPage, 1), MismatchError);
  EXPECT_THROW(segment->at(UINT64_MAX, 1), MismatchError);
  EXPECT_THROW(segment->at(kPage, SIZE_MAX), MismatchError);

  std::byte* data = segment->at(second, 1);
  EXPECT_EQ(segment->offset_of(data, 3 * kPage), second);
  EXPECT_EQ(segment->offset_of(data + 5, 1), second + 5);
  EXPECT_EQ(segment->offset_of(data + 3 * kPage - 1, 1), second + 3 * kPage - 1);
  EXPECT_EQ(segment->offset_of(data, 3 * kPage + 1), std::nullopt);
  EXPECT_EQ(segment->offset_of(data, SIZE_MAX), std::nullopt);
  int elsewhere = 0;
  EXPECT_EQ(segment->offset_of(&elsewhere, sizeof elsewhere), std::nullopt);
  EXPECT_EQ(segment->offset_of(nullptr, 0), std::nullopt);
}

TEST(Segment, APeerMapsLaterExtentsByItself) {
  int to_child[2], to_parent[2];
  ASSERT_EQ(::pipe2(to_child, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(to_parent, O_CLOEXEC), 0);
  // Forks before the segment exists, so the child does not inherit it.
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto read_number = [&] {
      uint64_t number = 0;
      if (::read(to_child[0], &number, sizeof number) != sizeof number) ::_exit(2);
      return number;
    };
    const auto fd = read_number();
    const auto segment =
        Segment::attach(base::Fd(::open(fmt::format("/proc/{}/fd/{}", parent, fd).c_str(), O_RDWR)));
    if (segment->owner()) ::_exit(3);
    for (int i = 0; i < Segment::kMaxExtents; ++i) {
      const auto offset = read_number();
      auto* word = reinterpret_cast<uint64_t*>(segment->at(offset, sizeof(uint64_t)));
      if (segment->offset_of(word, sizeof *word) != offset) ::_exit(4);
      *word += 1;
      if (::write(to_parent[1], &i, sizeof i) != sizeof i) ::_exit(5);
    }
    try {
      segment->at(segment->bytes_reserved(), 1);
    } catch (const MismatchError&) {
      ::_exit(0);
    }
    ::_exit(6);
  }
  const auto segment = Segment::create("test", 2 * kPage);
  const uint64_t fd = segment->fd();
  ASSERT_EQ(::write(to_child[1], &fd, sizeof fd), static_cast<ssize_t>(sizeof fd));
  for (int i = 0; i < Segment::kMaxExtents; ++i) {
    const uint64_t offset = i == 0 ? kPage : segment->add_extent(i * kPage);
    auto* word = reinterpret_cast<uint64_t*>(segment->at(offset, sizeof(uint64_t)));
    *word = 1000 + i;
    ASSERT_EQ(::write(to_child[1], &offset, sizeof offset), static_cast<ssize_t>(sizeof offset));
    int echo = -1;
    ASSERT_EQ(::read(to_parent[0], &echo, sizeof echo), static_cast<ssize_t>(sizeof echo));
    EXPECT_EQ(echo, i);
    EXPECT_EQ(*word, 1001U + i);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_THROW(segment->add_extent(1), SystemError);
  for (const int end : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) ::close(end);
}

TEST(Segment, RefusesWhatIsNone) {
  const auto before = open_descriptors();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ::close(pipe[1]);
  EXPECT_THROW(Segment::attach(base::Fd(pipe[0])), MismatchError);
  EXPECT_THROW(Segment::attach(base::Fd(::open("/proc/self/stat", O_RDONLY))), MismatchError);
  EXPECT_THROW(Segment::attach(base::Fd()), SystemError);
  const std::vector<uint64_t> table = {0, kPage};
  EXPECT_NO_THROW(Segment::attach(forge(kLayoutVersion, 1, table, kPage)));
  EXPECT_THROW(Segment::attach(forge(kLayoutVersion, 1, table, 0)), MismatchError);
  EXPECT_THROW(Segment::attach(forge(kLayoutVersion, 1, table, kPage, "locksmith")), MismatchError);
  EXPECT_THROW(Segment::attach(forge(kLayoutVersion, 1, table, kPage, "lockstep", 0)), MismatchError);
  EXPECT_THROW(Segment::attach(forge(kLayoutVersion, 0, table, kPage)), MismatchError);
  EXPECT_THROW(Segment::attach(forge(kLayoutVersion, 1, {kPage, kPage}, 2 * kPage)), MismatchError);
  EXPECT_THROW(Segment::attach(forge(kLayoutVersion, 1, {0, 2 * kPage}, kPage)), MismatchError);
  EXPECT_THROW(Segment::attach(forge(kLayoutVersion, 1, {0, kPage + 1}, 2 * kPage)), MismatchError);
  EXPECT_THROW(Segment::attach(forge(kLayoutVersion, 1, {0, 64}, kPage)), MismatchError);
  try {
    Segment::attach(forge(kLayoutVersion + 1, 1, table, kPage));
    FAIL();
  } catch (const MismatchError& error) {
    EXPECT_THAT(error.what(), HasSubstr("version 4, ours 3"));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Segment, RefusesADamagedTableOfALivePeer) {
  const std::vector<std::vector<uint64_t>> bad = {
      {0, kPage, kPage, 0},                        // empty
      {0, kPage, kPage, kPage + 8},                // not a multiple of the page size
      {0, kPage, 2 * kPage, kPage},                // a gap
      {0, kPage, 0, kPage},                        // the same extent twice
      {0, kPage, kPage, 1024 * kPage},             // past the end: would be a SIGBUS
      {0, kPage, kPage, UINT64_MAX - kPage + 1}};  // the end overflows
  for (const auto& table : bad) {
    const auto segment = Segment::attach(forge(kLayoutVersion, 2, table, 4 * kPage));
    EXPECT_NO_THROW(segment->at(0, kPage));
    EXPECT_THROW(segment->at(kPage, 1), MismatchError);
  }
  const auto segment = Segment::attach(forge(kLayoutVersion, 1000, bad[0], 4 * kPage));
  EXPECT_THROW(segment->at(kPage, 1), MismatchError);
}

TEST(Segment, AFailureToGrowChangesNothing) {
  const auto segment = Segment::create("test", kMiB);
  EXPECT_THROW(segment->add_extent(SIZE_MAX), SystemError);
  EXPECT_THROW(segment->add_extent(size_t{1} << 62), SystemError);
  EXPECT_THROW(segment->add_extent(size_t{1} << 50), SystemError);  // more than the address space
  EXPECT_EQ(segment->bytes_reserved(), kMiB);
  EXPECT_EQ(segment->add_extent(kMiB), kMiB);
}

TEST(Segment, AFileSizeLimitIsAnErrorNotASignal) {
  EXPECT_TRUE(in_child([] {
    const auto segment = Segment::create("test", kMiB);
    const rlimit limit{4 * kMiB, 4 * kMiB};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    segment->add_extent(2 * kMiB);
    try {
      segment->add_extent(2 * kMiB);
      return false;
    } catch (const SystemError& error) {
      if (std::strstr(error.what(), "ulimit -f") == nullptr) return false;
    }
    // If there is no space for twice as much, the arena takes only what it needs.
    Arena arena(segment);
    std::memset(arena.allocate(kMiB).data, 1, kMiB);
    try {
      arena.allocate(kMiB);
      return false;
    } catch (const SystemError&) {
      return segment->bytes_reserved() == 4 * kMiB;
    }
  }));
}

TEST(Segment, IsReadWhileItGrows) {
  const auto segment = Segment::create("test", kPage);
  std::atomic<uint64_t> newest{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      for (uint64_t offset = 0; offset < (Segment::kMaxExtents - 1) * kPage;) {
        offset = newest.load();
        const auto* data = segment->at(offset, kPage);
        if (segment->offset_of(data, kPage) != offset) std::abort();
      }
    });
  }
  for (int i = 1; i < Segment::kMaxExtents; ++i) newest = segment->add_extent(kPage);
  for (auto& reader : readers) reader.join();
}

TEST(Segment, WithdrawnPagesKeepTheirContents) {
  const auto segment = Segment::create("test", kPage);
  const auto offset = segment->add_extent(8 * kPage);
  auto* const data = segment->at(offset, 8 * kPage);
  std::memset(data, 7, 8 * kPage);
  // Two ranges that share a page, the second of them twice.
  segment->withdraw({offset + kPage, kPage + 100});
  segment->withdraw({offset + 2 * kPage + 50, kPage});
  segment->withdraw({offset + 2 * kPage + 50, kPage});
  for (size_t i = 0; i < 8 * kPage; ++i) ASSERT_EQ(data[i], std::byte{7}) << i;
  EXPECT_FALSE(segment->offset_of(data + kPage, 1));
  EXPECT_FALSE(segment->offset_of(data, 2 * kPage));
  EXPECT_FALSE(segment->offset_of(data + 4 * kPage - 1, 1));
  EXPECT_EQ(segment->offset_of(data, kPage), offset);
  EXPECT_EQ(segment->offset_of(data + 4 * kPage, kPage), offset + 4 * kPage);

  // A child sees what its parent saw; another process does not see what was withdrawn.
  const auto child = ::fork();
  if (child == 0) {
    for (size_t i = 0; i < 8 * kPage; ++i) {
      if (data[i] != std::byte{7}) ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::byte in_file{1};
  ASSERT_EQ(::pread(segment->fd(), &in_file, 1, static_cast<off_t>(offset + kPage)), 1);
  EXPECT_EQ(in_file, std::byte{0});
}

TEST(Segment, AddressesAgreeWithOffsetsModuloAHugePage) {
  auto segment = Segment::create("test", 3 * kPage);
  const auto second = segment->add_extent(5 * kPage);
  const auto third = segment->add_extent(5 * kMiB);
  const auto agrees = [](Segment& mine, uint64_t offset) {
    return reinterpret_cast<uintptr_t>(mine.at(offset, 1)) % kHugePageBytes == offset % kHugePageBytes;
  };
  for (const auto offset : {uint64_t{0}, second, third}) EXPECT_TRUE(agrees(*segment, offset)) << offset;
  auto descriptor = duplicate(segment->fd());
  segment.reset();
  const auto peer = Segment::attach(std::move(descriptor));
  EXPECT_FALSE(peer->owner());
  for (const auto offset : {uint64_t{0}, second, third}) EXPECT_TRUE(agrees(*peer, offset)) << offset;
}

}  // namespace
}  // namespace lockstep::shm
