// The allocator of shared memory.
#include "shm/arena.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <lockstep/error.h>

#include "base/fd.h"
#include "shm/pages.h"

namespace lockstep::shm::arena_test {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMiB = size_t{1} << 20;

TEST(Arena, AlignsAndGivesEveryBlockAnAddress) {
  Arena arena(Segment::create("test", kPage));
  const auto empty = arena.allocate(0);
  const auto small = arena.allocate(1);
  const auto large = arena.allocate(64 << 10);
  EXPECT_NE(empty.offset, small.offset);
  EXPECT_EQ(empty.bytes, 0U);
  EXPECT_EQ(small.bytes, 1U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data) % kPage, 0U);
  EXPECT_EQ(large.offset % kPage, 0U);
  EXPECT_GE(empty.offset, kPage) << "extent 0 is not the arena's";
  EXPECT_EQ(arena.bytes_in_use(), 64U + 64U + (64U << 10));
  for (const auto& block : {empty, small, large}) arena.free(block.offset);
  EXPECT_EQ(arena.bytes_in_use(), 0U);
  EXPECT_THROW(arena.free(small.offset), UsageError);
  EXPECT_THROW(arena.allocate(SIZE_MAX), SystemError);
  EXPECT_THROW(arena.allocate(size_t{1} << 50), SystemError);
}

TEST(Arena, UsesFreedMemoryBeforeItGrows) {
  const auto segment = Segment::create("test", kPage);
  Arena arena(segment);
  size_t reserved = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<uint64_t> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(arena.allocate(100 * 1000 + i).offset);
    if (round == 0) reserved = segment->bytes_reserved();
    std::shuffle(blocks.begin(), blocks.end(), std::minstd_rand(round));
    for (const auto offset : blocks) arena.free(offset);
  }
  EXPECT_EQ(segment->bytes_reserved(), reserved);
}

TEST(Arena, GivesThePagesOfLargeBlocksBack) {
  const auto segment = Segment::create("test", kPage);
  Arena arena(segment);
  const auto block = arena.allocate(64 * kMiB);
  std::memset(block.data, 1, block.bytes);
  EXPECT_GE(segment->bytes_in_memory(), 64 * kMiB);
  arena.free(block.offset);
  EXPECT_LE(segment->bytes_in_memory(), 4 * kMiB);
  const auto again = arena.allocate(64 * kMiB);
  EXPECT_EQ(again.offset, block.offset);
  std::memset(again.data, 2, again.bytes);
}

// The sum of a field of /proc/self/smaps over the mappings of a file, in bytes.
size_t mapped(const std::string& file, const std::string& field) {
  std::ifstream maps("/proc/self/smaps");
  bool ours = false;
  size_t kib = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(':')) ours = line.find(file) != std::string::npos;
    if (ours && line.starts_with(field + ":")) kib += std::stoull(line.substr(field.size() + 1));
  }
  return kib << 10;
}

// Tests directly what Arena relies on: Linux 6.1 and later makes huge pages, unless that is disabled.
bool kernel_makes_huge_pages() {
  const base::Fd file(::memfd_create("tried", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(file.get(), kHugePageBytes), 0);
  constexpr size_t kRoom = 2 * kHugePageBytes;
  void* const room = ::mmap(nullptr, kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto aligned =
      (reinterpret_cast<uintptr_t>(room) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  auto* const data =
      static_cast<std::byte*>(::mmap(reinterpret_cast<void*>(aligned), kHugePageBytes, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_FIXED, file.get(), 0));
  data[0] = std::byte{1};
  const bool can = ::madvise(data, kHugePageBytes, 25 /* MADV_COLLAPSE */) == 0;
  ::munmap(room, kRoom);
  return can;
}

TEST(Arena, LargeBlocksAreMadeOfHugePages) {
  if (!kernel_makes_huge_pages())
    GTEST_SKIP() << "this kernel makes no huge pages of shared memory on demand";
  const auto segment = Segment::create("huge_test", kPage);
  Arena arena(segment);
  const auto small = arena.allocate(kHugePageBytes - 1);
  EXPECT_EQ(mapped("huge_test", "ShmemPmdMapped"), 0U);
  const auto large = arena.allocate(5 * kMiB);
  EXPECT_EQ(large.offset % kHugePageBytes, 0U);
  EXPECT_EQ(mapped("huge_test", "ShmemPmdMapped"), 2 * kHugePageBytes);
  EXPECT_LE(segment->bytes_in_memory(), 2 * kHugePageBytes + kMiB) << "what was not asked for costs nothing";
  arena.free(large.offset);
  arena.free(small.offset);
  EXPECT_LE(segment->bytes_in_memory(), kMiB);
}

TEST(Arena, WhatIsVeryLargeTakesItsMemoryWhenItIsTouched) {
  const auto segment = Segment::create("test", kPage);
  Arena arena(segment);
  const auto block = arena.allocate(size_t{64} << 30);
  EXPECT_LE(segment->bytes_in_memory(), kMiB);
  block.data[block.bytes - 1] = std::byte{1};
  EXPECT_LE(segment->bytes_in_memory(), kHugePageBytes + kMiB);
}

TEST(Arena, PeersSeeTheSameHugePages) {
  if (!kernel_makes_huge_pages())
    GTEST_SKIP() << "this kernel makes no huge pages of shared memory on demand";
  base::Fd descriptor;
  Arena::Block block = {};
  {
    const auto segment = Segment::create("huge_test", kPage);
    block = Arena(segment).allocate(4 * kMiB);
    block.data[kMiB] = std::byte{7};
    descriptor = base::Fd(::fcntl(segment->fd(), F_DUPFD_CLOEXEC, 0));
  }
  EXPECT_EQ(mapped("huge_test", "Size"), 0U);
  const auto peer = Segment::attach(std::move(descriptor));
  const auto* data = peer->at(block.offset, block.bytes);
  EXPECT_EQ(data[kMiB], std::byte{7});
  EXPECT_EQ(data[3 * kMiB], std::byte{0});
  EXPECT_EQ(mapped("huge_test", "ShmemPmdMapped"), 4 * kMiB);
}

TEST(Arena, NoBlockCrossesExtentsThoughTheyTouchInTheFile) {
  const auto segment = Segment::create("test", kPage);
  Arena arena(segment);
  std::vector<uint64_t> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(arena.allocate(kMiB).offset);  // 4 MiB, then 8 MiB
  for (const auto offset : blocks) arena.free(offset);
  const auto block = arena.allocate(9 * kMiB);
  std::memset(block.data, 1, block.bytes);
  EXPECT_EQ(segment->offset_of(block.data, block.bytes), block.offset);
}

TEST(Arena, ManyBlocksNeedFewExtents) {
  Arena arena(Segment::create("test", kPage));
  for (int i = 0; i < 4000; ++i) arena.allocate(kMiB);  // 4 GB, none of it touched
  EXPECT_EQ(arena.bytes_in_use(), 4000 * kMiB);
}

TEST(Arena, BlocksNeverOverlap) {
  const auto segment = Segment::create("test", kPage);
  Arena arena(segment);
  std::mt19937 random(1);
  std::map<uint64_t, std::pair<Arena::Block, uint8_t>> live;
  for (int step = 0; step < 20000; ++step) {
    if (live.size() > 100 || (!live.empty() && random() % 2 == 0)) {
      auto victim = live.begin();
      std::advance(victim, random() % live.size());
      const auto& [block, mark] = victim->second;
      for (const size_t at : {size_t{0}, block.bytes / 2, block.bytes - 1}) {
        ASSERT_EQ(block.data[at], std::byte{mark});
      }
      arena.free(block.offset);
      live.erase(victim);
    } else {
      const size_t bytes = 1 + random() % (size_t{1} << (random() % 18));
      const auto block = arena.allocate(bytes);
      const auto mark = static_cast<uint8_t>(random());
      const auto next = live.lower_bound(block.offset);
      if (next != live.end()) {
        ASSERT_LE(block.offset + bytes, next->first);
      }
      if (next != live.begin()) {
        const auto& before = std::prev(next)->second.first;
        ASSERT_LE(before.offset + before.bytes, block.offset);
      }
      std::memset(block.data, mark, bytes);
      live.emplace(block.offset, std::pair(block, mark));
    }
  }
  for (const auto& [offset, block] : live) arena.free(offset);
  EXPECT_EQ(arena.bytes_in_use(), 0U);
  // All memory is in one piece again: a whole extent can be allocated at once, without growth.
  const auto reserved = segment->bytes_reserved();
  arena.allocate(kHugePageBytes - kPage);  // the largest block that may begin at any page
  arena.allocate(kHugePageBytes - kPage);
  EXPECT_EQ(segment->bytes_reserved(), reserved);
}

TEST(Arena, ServesManyThreads) {
  Arena arena(Segment::create("test", kPage));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&arena, i] {
      std::minstd_rand random(i + 1);
      for (int step = 0; step < 300; ++step) {
        const auto block = arena.allocate(1 + random() % (2 * kMiB));
        block.data[0] = block.data[block.bytes - 1] = static_cast<std::byte>(i);
        std::this_thread::yield();
        if (block.data[0] != static_cast<std::byte>(i)) std::abort();
        arena.free(block.offset);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(arena.bytes_in_use(), 0U);
}

}  // namespace
}  // namespace lockstep::shm::arena_test
