// Which of a c10d backend's tags carry what, when fingerprints travel beside the data, and a fingerprint as
// the tensor that a backend sends.
#pragma once

#include <cstring>
#include <limits>

#include <ATen/ATen.h>

#include "gloo/fingerprint.h"

namespace lockstep::gloo {

// Of collectives.
constexpr int kFingerprintTag = std::numeric_limits<int>::max();
// Of a receive that is not meant to be served.
constexpr int kUnusedTag = kFingerprintTag - 1;

// Of the headers of a user's message: that of its sender, and that of its receiver.
constexpr int sender_tag(int tag) { return (1 << 30) + 2 * tag; }
constexpr int receiver_tag(int tag) { return sender_tag(tag) + 1; }

// Of the message itself. Two that differ in dtype or count must not meet, or Gloo ends the process. Messages
// of one dtype and count never share one, nor do those of one tag and dtype whose counts differ by less than
// a billion; of all others one pair in a billion does, which matters only while both are under way.
constexpr int data_tag(int tag, const Fingerprint& call) {
  constexpr int64_t kPrime = (1 << 30) - 35;
  // Any will do; these keep neighbouring tags, and neighbouring dtypes, far apart.
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
