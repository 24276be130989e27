#include "comm/generation.h"

#include "comm/group.h"

namespace lockstep {

struct ProcessGroup::Handle {
  static std::shared_ptr<Impl>& of(ProcessGroup& group) { return group.impl_; }
  static const std::shared_ptr<Impl>& of(const ProcessGroup& group) { return group.impl_; }
};

namespace comm {

const std::shared_ptr<ProcessGroup::Impl>& generation_of(const ProcessGroup& handle) {
  return ProcessGroup::Handle::of(handle);
}

uint64_t generation_number(const ProcessGroup& handle) { return generation_of(handle)->generation; }

void point_at(ProcessGroup& handle, const ProcessGroup& other) {
  ProcessGroup::Handle::of(handle) = generation_of(other);
}

}  // namespace comm

}  // namespace lockstep
