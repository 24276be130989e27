#include "shm/mismatch.h"

#include <cstring>

namespace lockstep::shm {

std::string describe(const CallSlot& slot) {
  const auto& call = slot.call;
  if (call.kind >= comm::kKinds) return "a call of another version of lockstep";
  const auto kind = static_cast<comm::Kind>(call.kind);
  if (kind == comm::Kind::Agreement) {
    const auto* const label = reinterpret_cast<const AgreementHeader*>(slot.bytes)->label;
    return {label, ::strnlen(label, sizeof(AgreementHeader::label))};
  }
  return comm::describe(comm::CallFacts{.kind = kind,
                                        .dtype = static_cast<c10::ScalarType>(call.dtype),
                                        .op = static_cast<ReduceOp>(call.op),
                                        .root = call.root,
                                        .count = call.count});
}

bool same_call(const CallWords& mine, const CallWords& theirs) {
  return theirs.kind == mine.kind && theirs.dtype == mine.dtype && theirs.op == mine.op &&
         theirs.root == mine.root && theirs.count == mine.count;
}

}  // namespace lockstep::shm
