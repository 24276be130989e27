// What the ranks of a group must agree on when they make a call, small enough to be sent with every one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

namespace lockstep::comm {

struct Fingerprint {
  enum class Kind : uint8_t {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    Gather,
    Scatter,
    AllToAll,
    Barrier,
    Send,
    Recv,
  };
  static constexpr int32_t kNoRoot = -1;
  static constexpr uint8_t kNoOp = 255;

  uint64_t number = 0;  // of the collective in its group; 0 for a message
  int64_t count = 0;    // elements that this rank hands over
  int32_t root = kNoRoot;
  Kind kind = Kind::Barrier;
  uint8_t op = kNoOp;
  int8_t dtype = 0;
  uint8_t unused = 0;

  bool operator==(const Fingerprint&) const = default;
};
// It travels as its bytes.
static_assert(std::is_trivially_copyable_v<Fingerprint> &&
              std::has_unique_object_representations_v<Fingerprint>);

Fingerprint fingerprint_of(Fingerprint::Kind kind, const at::Tensor& tensor,
                           std::optional<ReduceOp> op = std::nullopt, int root = Fingerprint::kNoRoot);

// "all_reduce of 1000 Float, Sum"; "broadcast of 10 Float, root 0".
std::string describe(const Fingerprint& call);
// The same under the name by which it was called.
std::string describe(const Fingerprint& call, const char* name);

// Equal for calls that may be matched with each other, and for others with a chance of 2^-24 only; 24 bits.
// The number is left out.
uint32_t digest(const Fingerprint& call);

// What was found to differ. Whoever knows the group makes a MismatchError of it.
struct Disagreement {
  int rank;         // the other one
  uint64_t number;  // of the collective; 0 for a message
  std::string here, there;
};

}  // namespace lockstep::comm
