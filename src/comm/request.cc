#include "comm/request.h"

#include <fmt/format.h>

namespace lockstep::comm {

const char* name_of(ReduceOp op) {
  static constexpr const char* kNames[] = {"Sum", "Avg", "Product", "Min", "Max", "Band", "Bor", "Bxor"};
  return kNames[static_cast<size_t>(op)];
}

std::string describe(const CallFacts& call) {
  const auto& pattern = pattern_of(call.kind);
  const char* name = call.name != nullptr ? call.name : pattern.name;
  if (call.kind == Kind::Barrier || call.kind == Kind::Agreement) return name;
  auto text = call.kind == Kind::AllToAll
                  ? fmt::format("{} of {}", name, c10::toString(call.dtype))
                  : fmt::format("{} of {} {}", name, call.count, c10::toString(call.dtype));
  if (pattern.reduces) text += fmt::format(", {}", name_of(call.op));
  if (call.kind == Kind::Update) return text + (call.root == kMeasures ? ", its norm" : "");
  if (call.root != kNoRoot) text += fmt::format(", root {}", call.root);
  return text;
}

CallFacts facts_of(const Request& request) {
  if (request.part_of != nullptr) return *request.part_of;
  return {.kind = request.kind,
          .dtype = request.dtype,
          .op = request.op,
          .root = request.root,
          .count = request.count,
          .name = request.name};
}

std::string describe(const Request& request) {
  auto text = describe(facts_of(request));
  // Without its number, which differs between the ranks.
  if (!request.device.is_cpu()) text += fmt::format(" on {}", c10::DeviceTypeName(request.device.type()));
  if (!is_message(request)) return text;
  const char* const direction = request.kind == Kind::Send ? "to" : "from";
  return request.peer == kAnyRank
             ? fmt::format("{} {} any rank, tag {}", text, direction, request.tag)
             : fmt::format("{} {} rank {}, tag {}", text, direction, request.peer, request.tag);
}

}  // namespace lockstep::comm
