// The properties of a call on which the ranks of a group must agree, small enough to be sent with every call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "comm/link.h"
#include "comm/request.h"

namespace lockstep::comm {

struct Fingerprint {
  static constexpr uint8_t kNoOp = 255;
  static constexpr int64_t kAnyCount = -1;

  uint64_t number = 0;  // of the collective in its group; 0 for a message
  int64_t count = 0;    // elements that this rank gives; kAnyCount if the ranks need not agree on it
  int32_t root = kNoRoot;
  Kind kind = Kind::Barrier;
  uint8_t op = kNoOp;
  int8_t dtype = 0;
  int8_t wire = static_cast<int8_t>(c10::ScalarType::Undefined);

  bool operator==(const Fingerprint&) const = default;
};
// It is sent as bytes.
static_assert(std::is_trivially_copyable_v<Fingerprint> &&
              std::has_unique_object_representations_v<Fingerprint>);

Fingerprint fingerprint_of(const Request& request, uint64_t number);

// "all_reduce of 1000 Float, Sum"; "broadcast of 10 Float, root 0".
std::string describe(const Fingerprint& call);

// Sends a copy of it to a rank; receives one. Neither blocks. `then`: more is sent, or awaited, soon.
enum class Then { Nothing, More };
TransferPtr send_fingerprint(Link& link, int to, int tag, const Fingerprint& call, Then then);
TransferPtr receive_fingerprint(Link& link, int from, int tag, const std::shared_ptr<Fingerprint>& call);

// A hash of 24 bits: equal for calls that may be matched with each other, and for other calls only with a
// probability of 2^-24. The number is not included.
uint32_t digest(const Fingerprint& call);

}  // namespace lockstep::comm
