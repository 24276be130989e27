#include "shm/mismatch.h"

#include <fmt/format.h>

#include <c10/core/ScalarType.h>

namespace lockstep::shm {

namespace {

const char* name_of(Combine combine) {
  static constexpr const char* kNames[] = {"Sum", "Avg", "Product", "Min", "Max", "Band", "Bor", "Bxor"};
  return kNames[static_cast<size_t>(combine)];
}

}  // namespace

std::string describe(const CallWords& call) {
  const auto kind = static_cast<Kind>(call.kind);
  const auto& pattern = pattern_of(kind);
  if (kind == Kind::Barrier) return pattern.name;
  const char* dtype = c10::toString(static_cast<c10::ScalarType>(call.dtype));
  auto text = kind == Kind::AllToAll ? fmt::format("{} of {}", pattern.name, dtype)
                                     : fmt::format("{} of {} {}", pattern.name, call.count, dtype);
  if (pattern.reduces) text += fmt::format(", {}", name_of(static_cast<Combine>(call.combine)));
  if (call.root != kNoRoot) text += fmt::format(", root {}", call.root);
  return text;
}

bool same_call(const Request& mine, const CallWords& theirs) {
  return theirs.kind == static_cast<uint8_t>(mine.kind) && theirs.dtype == static_cast<uint8_t>(mine.dtype) &&
         theirs.combine == static_cast<uint8_t>(mine.combine) && theirs.root == mine.root &&
         theirs.count == mine.count;
}

}  // namespace lockstep::shm
