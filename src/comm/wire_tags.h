// The tags of what the ranks send each other over a link.
#pragma once

#include <cstdint>
#include <limits>

#include "comm/fingerprint.h"

namespace lockstep::comm {

// For the fingerprints of collectives.
constexpr int kFingerprintTag = std::numeric_limits<int>::max();
// For receives to which nothing is sent: consecutive tags, down from this one, use different connections.
constexpr int kUnusedTag = kFingerprintTag - 1;

// The largest tag of a user's message, over every transport.
constexpr int kLargestUserTag = 500'000'000;
// For messages that are parts of a collective (c10d_face/group_engine.h).
constexpr int kInternalTag = kLargestUserTag + 1;

// For the headers of a user's message: the sender's and the receiver's.
constexpr int sender_tag(int tag) { return (1 << 30) + 2 * tag; }
constexpr int receiver_tag(int tag) { return sender_tag(tag) + 1; }

// For the message itself. Messages that differ in dtype or count must not be matched, or Gloo ends the
// process. Messages with the same dtype and count but different tags never share a data tag, nor do those
// with the same tag and dtype whose counts differ by less than a billion. Of all other pairs, one in a
// billion does, which matters only while both are in progress.
constexpr int data_tag(int tag, const Fingerprint& call) {
  constexpr int64_t kPrime = (1 << 30) - 35;
  // Any values work; these keep neighbouring tags, and neighbouring dtypes, far apart.
  constexpr int64_t kTagStride = 663'609'871, kDtypeStride = 410'133'443;
  return static_cast<int>((call.count % kPrime + call.dtype * kDtypeStride + tag * kTagStride) % kPrime);
}

// For part `part` of the data of a collective with this digest. Parts of different calls are matched with
// each other only with a probability of one in a million, and parts under way at the same time never.
constexpr int kPartsUnderWay = 64;
constexpr int part_tag(uint32_t digest, uint64_t part) {
  constexpr int kFirst = receiver_tag(kInternalTag) + 1;
  constexpr uint32_t kDigests = 1 << 20;
  static_assert(kFirst < kUnusedTag - static_cast<int>(kDigests) * kPartsUnderWay);
  return kFirst + static_cast<int>(digest % kDigests) * kPartsUnderWay +
         static_cast<int>(part % kPartsUnderWay);
}

}  // namespace lockstep::comm
