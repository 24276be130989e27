#include "comm/fingerprint.h"

#include <fmt/format.h>

namespace lockstep::comm {

namespace {

// Every bit of the result depends on every bit of `word`.
uint64_t mixed(uint64_t word) {
  word = (word ^ (word >> 32)) * 0xd6e8feb86659fd93;
  word = (word ^ (word >> 32)) * 0xd6e8feb86659fd93;
  return word ^ (word >> 32);
}

}  // namespace

Fingerprint fingerprint_of(const Request& request, uint64_t number) {
  Fingerprint call{.number = number,
                   .count = static_cast<int64_t>(request.count),
                   .root = request.root,
                   .kind = request.kind,
                   .dtype = static_cast<int8_t>(request.dtype),
                   .wire = static_cast<int8_t>(request.wire)};
  if (pattern_of(request.kind).reduces) call.op = static_cast<uint8_t>(request.op);
  // If the pieces of an all-to-all have equal sizes, the ranks must agree on their number of elements.
  if (request.any_sizes) {
    call.count = Fingerprint::kAnyCount;
  } else if (request.kind == Kind::AllToAll) {
    size_t bytes = 0;
    for (const auto& piece : request.give) bytes += piece.bytes;
    call.count = static_cast<int64_t>(bytes / c10::elementSize(request.dtype));
  }
  return call;
}

std::string describe(const Fingerprint& call) {
  if (static_cast<size_t>(call.kind) >= kKinds) return "a call of another version of lockstep";
  const CallFacts facts{.kind = call.kind,
                        .dtype = static_cast<c10::ScalarType>(call.dtype),
                        .op = static_cast<ReduceOp>(call.op),
                        .root = call.root,
                        .count = static_cast<uint64_t>(call.count)};
  const auto wire = static_cast<c10::ScalarType>(call.wire);
  if (wire != c10::ScalarType::Undefined)
    return fmt::format("{}, sent as {}", describe(facts), c10::toString(wire));
  if (call.kind != Kind::AllToAll || call.count == Fingerprint::kAnyCount) return describe(facts);
  return fmt::format("all_to_all of {} {}", call.count, c10::toString(facts.dtype));
}

TransferPtr send_fingerprint(Link& link, int to, int tag, const Fingerprint& call, Then then) {
  const auto copy = std::make_shared<const Fingerprint>(call);
  const auto* const data = reinterpret_cast<const std::byte*>(copy.get());
  return then == Then::More ? link.send_with_next(to, tag, data, sizeof call, copy)
                            : link.send(to, tag, data, sizeof call, copy);
}

TransferPtr receive_fingerprint(Link& link, int from, int tag, const std::shared_ptr<Fingerprint>& call) {
  return link.receive(from, tag, reinterpret_cast<std::byte*>(call.get()), sizeof *call, call);
}

uint32_t digest(const Fingerprint& call) {
  const auto small = static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 32 |
                     static_cast<uint64_t>(static_cast<uint8_t>(call.wire)) << 24 |
                     static_cast<uint64_t>(call.kind) << 16 | static_cast<uint64_t>(call.op) << 8 |
                     static_cast<uint8_t>(call.dtype);
  return static_cast<uint32_t>(mixed(mixed(static_cast<uint64_t>(call.count)) + small) >> 40);
}

}  // namespace lockstep::comm
