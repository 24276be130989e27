// How the elements of an all-reduce are divided among ranks and machines. All ranks must divide them alike,
// or bytes that do not belong together meet.
#include "hybrid/shares.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <string>

#include "hybrid/topology.h"

namespace lockstep::hybrid {
namespace {

// "aab": ranks 0 and 1 on machine a, rank 2 on machine b.
Topology topology_of(const std::string& machines, int rank) {
  std::vector<rendezvous::RankFacts> ranks;
  for (const char machine : machines) {
    ranks.push_back({.rank = static_cast<int>(ranks.size()), .machine = std::string(1, machine)});
  }
  return Topology(rank, ranks);
}

TEST(Topologies, KnowWhoIsWhere) {
  const auto topology = topology_of("abacb", 2);
  EXPECT_EQ(topology.machines(), 3);
  EXPECT_EQ(topology.machine, 0);
  EXPECT_EQ(topology.local, 1);
  EXPECT_EQ(topology.local_ranks(), (std::vector<int>{0, 2}));
  EXPECT_FALSE(topology.is_leader());
  EXPECT_TRUE(topology.is_local(0));
  EXPECT_FALSE(topology.is_local(1));
  EXPECT_EQ(topology.leader_of(1), 1);
  EXPECT_EQ(topology.ranks_of[2], (std::vector<int>{3}));
}

TEST(Topologies, PairRanksSoThatAllFeedTheLink) {
  const auto topology = topology_of("aabbc", 0);
  EXPECT_EQ(topology.partner_on(1, 0), 2);
  EXPECT_EQ(topology.partner_on(1, 1), 3);
  EXPECT_EQ(topology.partner_on(2, 1), 4);
  EXPECT_EQ(topology.partner_on(0, 4), 0);
  EXPECT_EQ(topology.partner_on(1, 3), 3);  // itself
}

constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 1000, 4096, 4097, 100'003, 262'144, 1'000'001};
constexpr size_t kElementBytes[] = {1, 2, 4, 16};
const std::string kPlacements[] = {"ab", "aab", "abb", "abcab", "aaabb", "aaaaabbbc"};

// Consecutive, without gaps, covering `whole`.
void expect_cover(const std::vector<Range>& ranges, const Range& whole) {
  auto at = whole.from;
  for (const auto& range : ranges) {
    EXPECT_EQ(range.from, at);
    EXPECT_GE(range.count, 0);
    at = range.end();
  }
  EXPECT_EQ(at, whole.end());
}

// Small tensors, too, are on their way before all of them is reduced.
TEST(Shares, OfSmallTensorsAreSeveralChunks) {
  const auto topology = topology_of("aabb", 0);
  EXPECT_EQ(chunks_of(1024, topology, 4).size(), 1u);
  for (const int64_t kib : {32, 64, 256}) EXPECT_GT(chunks_of(kib << 8, topology, 4).size(), 1u) << kib;
}

// A bucket keeps network and memory busy at once: it has more than one of the largest chunks.
TEST(Shares, OfABucketOverlap) {
  for (const auto& placement : {"ab", "aaaabbbb", "aaaabbbbccccdddd"}) {
    const auto topology = topology_of(placement, 0);
    const auto chunks = chunks_of(int64_t{1} << 26, topology, 1);
    const auto longest = std::max_element(chunks.begin(), chunks.end(),
                                          [](const Range& a, const Range& b) { return a.count < b.count; });
    EXPECT_GT(bucket_bytes_for(topology), static_cast<size_t>(longest->count)) << placement;
  }
}

TEST(Shares, OfChunksCoverEverything) {
  for (const auto& placement : kPlacements) {
    const auto topology = topology_of(placement, 0);
    for (const auto count : kCounts) {
      for (const auto bytes : kElementBytes) {
        const auto chunks = chunks_of(count, topology, bytes);
        ASSERT_FALSE(chunks.empty());
        expect_cover(chunks, {0, count});
        for (const auto& chunk : chunks) {
          for (const int ranks : {1, 2, 3, 7}) expect_cover(shares_of(chunk, ranks, bytes), chunk);
          for (const int parts : {1, 2, 5}) {
            std::vector<Range> split;
            for (int part = 0; part < parts; ++part) split.push_back(part_of(chunk, parts, part, bytes));
            expect_cover(split, chunk);
          }
        }
      }
    }
  }
}

TEST(Shares, AreEqualAndWholeCacheLines) {
  const auto shares = shares_of({0, 1'000'000}, 3, 4);
  EXPECT_EQ(shares[0].count, shares[1].count);
  EXPECT_EQ(shares[0].count * 4 % 64, 0);
  EXPECT_LE(shares[0].count - shares[2].count, 64);
}

TEST(Shares, OfASmallChunkAreOneRanks) {
  const auto shares = shares_of({8, 1000}, 3, 4);
  EXPECT_EQ(shares[0], (Range{8, 1000}));
  EXPECT_EQ(shares[1].count + shares[2].count, 0);
}

TEST(Shares, OfManyRanksAreLargeEnoughForTheirMessages) {
  const std::string many =
      std::string(8, 'a') + std::string(8, 'b') + std::string(8, 'c') + std::string(8, 'd');
  const auto chunks = chunks_of(int64_t{1} << 28, topology_of(many, 0), 4);
  EXPECT_GE(chunks[5].count * 4 / 8 / 4, int64_t{64} << 10);
}

// What two owners believe that they exchange is the same, in the same order.
TEST(Strips, AreTheSameOnBothEnds) {
  for (const auto& placement : kPlacements) {
    const auto world = static_cast<int>(placement.size());
    for (const auto count : kCounts) {
      for (const auto bytes : kElementBytes) {
        const Range chunk{7, count};
        using Exchange = std::tuple<int, int, int64_t, int64_t>;  // from, to, the elements
        std::vector<Exchange> sent, received;
        int64_t covered = 0;
        for (int rank = 0; rank < world; ++rank) {
          const auto topology = topology_of(placement, rank);
          for (const auto& strip : strips_of(chunk, topology, bytes)) {
            EXPECT_GT(strip.range.count, 0);
            EXPECT_EQ(strip.owners[topology.machine], rank);
            if (topology.machine == 0) covered += strip.range.count;
            for (int m = 0; m < topology.machines(); ++m) {
              if (m == topology.machine) continue;
              sent.emplace_back(rank, strip.owners[m], strip.range.from, strip.range.count);
              received.emplace_back(strip.owners[m], rank, strip.range.from, strip.range.count);
            }
          }
        }
        EXPECT_EQ(covered, count) << placement;
        // By pairs, in the order in which each rank makes them.
        const auto by_pair = [](const Exchange& a, const Exchange& b) {
          return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
        };
        std::stable_sort(sent.begin(), sent.end(), by_pair);
        std::stable_sort(received.begin(), received.end(), by_pair);
        EXPECT_EQ(sent, received) << placement << " " << count;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::hybrid
