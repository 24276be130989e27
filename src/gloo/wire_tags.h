// The tags of a c10d backend for fingerprints and for data, and the conversion of a fingerprint to the tensor
// that the backend sends.
#pragma once

#include <cstring>
#include <limits>

#include <ATen/ATen.h>

#include "gloo/fingerprint.h"

namespace lockstep::gloo {

// For the fingerprints of collectives.
constexpr int kFingerprintTag = std::numeric_limits<int>::max();
// For receives to which nothing is sent: consecutive tags, down from this one, use different connections.
constexpr int kUnusedTag = kFingerprintTag - 1;

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

inline at::Tensor bytes_of(const Fingerprint& call) {
  auto bytes = at::empty({sizeof(call)}, at::kByte);
  std::memcpy(bytes.data_ptr(), &call, sizeof(call));
  return bytes;
}

inline Fingerprint fingerprint_in(const at::Tensor& bytes) {
  Fingerprint call;
  std::memcpy(&call, bytes.data_ptr(), sizeof(call));
  return call;
}

}  // namespace lockstep::gloo
