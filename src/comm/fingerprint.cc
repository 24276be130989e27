#include "comm/fingerprint.h"

#include <array>
#include <fmt/format.h>

#include "comm/gaps.h"

namespace lockstep::comm {

namespace {

constexpr std::array kKindNames = {"all_reduce",     "broadcast", "reduce",  "all_gather",
                                   "reduce_scatter", "gather",    "scatter", "all_to_all",
                                   "barrier",        "send",      "recv"};

// Every bit of the result depends on every bit of `word`.
uint64_t mixed(uint64_t word) {
  word = (word ^ (word >> 32)) * 0xd6e8feb86659fd93;
  word = (word ^ (word >> 32)) * 0xd6e8feb86659fd93;
  return word ^ (word >> 32);
}

}  // namespace

Fingerprint fingerprint_of(Fingerprint::Kind kind, const at::Tensor& tensor, std::optional<ReduceOp> op,
                           int root) {
  return {.count = tensor.numel(),
          .root = root,
          .kind = kind,
          .op = op ? static_cast<uint8_t>(*op) : Fingerprint::kNoOp,
          .dtype = static_cast<int8_t>(tensor.scalar_type())};
}

std::string describe(const Fingerprint& call, const char* name) {
  if (call.kind == Fingerprint::Kind::Barrier) return name;
  auto text =
      fmt::format("{} of {} {}", name, call.count, c10::toString(static_cast<at::ScalarType>(call.dtype)));
  if (call.op != Fingerprint::kNoOp) text += fmt::format(", {}", name_of(static_cast<ReduceOp>(call.op)));
  if (call.root != Fingerprint::kNoRoot) text += fmt::format(", root {}", call.root);
  return text;
}

std::string describe(const Fingerprint& call) {
  const auto kind = static_cast<size_t>(call.kind);
  return kind < kKindNames.size() ? describe(call, kKindNames[kind])
                                  : "a call of another version of lockstep";
}

uint32_t digest(const Fingerprint& call) {
  const auto small = static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 32 |
                     static_cast<uint64_t>(call.kind) << 16 | static_cast<uint64_t>(call.op) << 8 |
                     static_cast<uint8_t>(call.dtype);
  return static_cast<uint32_t>(mixed(mixed(static_cast<uint64_t>(call.count)) + small) >> 40);
}

}  // namespace lockstep::comm
