// What a call's fingerprint tells apart, and the tags that are made of it.
#include "comm/fingerprint.h"

#include <gtest/gtest.h>
#include <set>

#include <ATen/ATen.h>

#include "comm/from_tensors.h"
#include "comm/wire_tags.h"

namespace lockstep::comm {
namespace {

TEST(Fingerprints, AreDescribed) {
  EXPECT_EQ(describe(fingerprint_of(all_reduce_of(at::ones({2, 3}), ReduceOp::Avg), 1)),
            "all_reduce of 6 Float, Avg");
  EXPECT_EQ(describe(fingerprint_of(broadcast_of(at::ones({4}, at::kInt), 3, 0), 1)),
            "broadcast of 4 Int, root 3");
  EXPECT_EQ(describe(Fingerprint{}), "barrier");
  const auto half = at::ones({3}), whole = at::ones({6});
  EXPECT_EQ(describe(fingerprint_of(all_to_all_of(whole, whole, {3, 3}, {3, 3}), 1)),
            "all_to_all of 6 Float");
  EXPECT_EQ(describe(fingerprint_of(all_gather_of(whole, half, 2), 1)), "all_gather of 3 Float");
  Fingerprint strange;
  strange.kind = static_cast<Kind>(200);
  EXPECT_EQ(describe(strange), "a call of another version of lockstep");
}

TEST(Fingerprints, HaveDigestsOfTheirOwn) {
  std::set<uint32_t> seen;
  size_t calls = 0;
  for (const auto kind : {Kind::AllReduce, Kind::Reduce, Kind::AllGather}) {
    for (const int root : {-1, 0, 1, 7}) {
      for (const int op : {0, 1, 4, 255}) {
        for (const int dtype : {3, 4, 6, 7}) {
          for (const int64_t count : {0, 1, 3, 4, 1000, 1500, 1 << 20}) {
            Fingerprint call{.count = count, .root = root, .kind = kind};
            call.op = static_cast<uint8_t>(op);
            call.dtype = static_cast<int8_t>(dtype);
            EXPECT_LT(digest(call), 1u << 24);
            seen.insert(digest(call));
            ++calls;
            // The number tells nothing: all calls are matched one after the other.
            call.number = 5;
            EXPECT_EQ(seen.count(digest(call)), 1);
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), calls);
}

TEST(WireTags, OfMessagesThatDifferDiffer) {
  std::set<int> seen;
  size_t messages = 0;
  for (const int tag : {0, 1, 2, 3, 1000, 32768, 65536, kLargestUserTag}) {
    for (const int dtype : {0, 3, 4, 6, 7}) {
      for (const int64_t count :
           {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{4}, int64_t{1} << 24, int64_t{1} << 28}) {
        Fingerprint call{.count = count};
        call.dtype = static_cast<int8_t>(dtype);
        EXPECT_GE(data_tag(tag, call), 0);
        EXPECT_LT(data_tag(tag, call), sender_tag(0));
        seen.insert(data_tag(tag, call));
        ++messages;
      }
    }
    EXPECT_GT(sender_tag(tag), 0);
    EXPECT_LT(receiver_tag(tag), kUnusedTag);
  }
  EXPECT_EQ(seen.size(), messages);
}

TEST(WireTags, OfPartsAreApartFromThoseOfMessages) {
  for (const uint32_t digest : {0u, 1u, 0xffffffu}) {
    for (const uint64_t part : {0, 1, kPartsUnderWay - 1}) {
      EXPECT_GT(part_tag(digest, part), receiver_tag(kLargestUserTag));
      EXPECT_LT(part_tag(digest, part), kUnusedTag);
      EXPECT_EQ(part_tag(digest, part), part_tag(digest, 0) + static_cast<int>(part));
    }
  }
  EXPECT_NE(part_tag(1, 0), part_tag(2, 0));
}

}  // namespace
}  // namespace lockstep::comm
