#include "comm/common_memory.h"

#include <atomic>
#include <fmt/format.h>
#include <mutex>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/control.h"
#include "comm/generation.h"
#include "comm/group.h"

namespace lockstep::comm {

namespace {

constexpr int64_t kLine = 64;

// In the last line of the memory: how many ranks have not released it.
std::atomic<uint32_t>& users_of(const at::Tensor& memory) {
  auto* const end = static_cast<std::byte*>(memory.data_ptr()) + memory.nbytes();
  return *reinterpret_cast<std::atomic<uint32_t>*>(end - kLine);
}

// What the other ranks may still use, of this process's memory. Never destroyed: tensors in static objects
// may be released later.
struct Released {
  std::mutex mutex;
  std::vector<at::Tensor> memory;

  static Released& instance() {
    static auto& released = *new Released;
    return released;
  }
  void add(const at::Tensor& of_all) {
    const std::lock_guard lock(mutex);
    memory.push_back(of_all);
  }
  void free_unused() {
    const std::lock_guard lock(mutex);
    std::erase_if(memory, [](const at::Tensor& of_all) { return users_of(of_all).load() == 0; });
  }
};

void release(const at::Tensor& memory, bool first) {
  const bool last = users_of(memory).fetch_sub(1) == 1;
  if (first && !last) Released::instance().add(memory);
}

}  // namespace

CommonMemory allocate_common(ProcessGroup& group, int64_t elements, at::ScalarType dtype) {
  auto& members = *generation_of(group);
  auto* const neighbours = members.transport->neighbours();
  if (neighbours == nullptr) {
    throw UsageError(base::compose(
        {.what = "the ranks of a machine cannot have one copy of the parameters",
         .where = fmt::format("rank {}/{}, backend {}", members.rank, members.world_size, members.backend),
         .evidence = "this backend shares no memory",
         .hint = "use the backend \"auto\", or leave DdpOptions::share_parameters out"}));
  }
  const auto ranks = neighbours->ranks();
  const bool first = ranks.front() == members.rank;
  const auto values = static_cast<int64_t>(elements * c10::elementSize(dtype));
  const auto bytes = (values + kLine - 1) / kLine * kLine + kLine;
  at::Tensor memory;
  uint64_t offset = 0;
  if (first) {
    Released::instance().free_unused();
    memory = members.transport->allocate({bytes}, at::kByte);
    memory.zero_();
    new (&users_of(memory)) std::atomic<uint32_t>(static_cast<uint32_t>(ranks.size()));
    offset = neighbours->offset_of(memory);
  }
  const auto offsets = control_of(group).gather<uint64_t>("memory for the parameters of a machine", offset);
  if (!first) memory = neighbours->map(ranks.front(), offsets[ranks.front()], bytes);
  const auto tensor = at::from_blob(
      memory.data_ptr(), {elements}, [memory, first](void*) { release(memory, first); },
      at::TensorOptions().dtype(dtype));
  return {tensor, first};
}

}  // namespace lockstep::comm
