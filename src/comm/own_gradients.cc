#include "comm/own_gradients.h"

#include <map>
#include <mutex>

namespace lockstep::comm {

namespace {

struct Registry {
  std::mutex mutex;
  std::map<const std::byte*, size_t> bytes;  // of each memory, by its begin

  static Registry& instance() {
    static auto& registry = *new Registry;
    return registry;
  }
};

}  // namespace

OwnGradients::OwnGradients(const at::Tensor& memory)
    : begin_(static_cast<const std::byte*>(memory.data_ptr())) {
  auto& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.bytes[begin_] = memory.nbytes();
}

OwnGradients::~OwnGradients() {
  auto& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.bytes.erase(begin_);
}

bool is_own(const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.layout() != at::kStrided || !gradient.is_cpu()) return false;
  auto& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  const auto* const data = static_cast<const std::byte*>(gradient.data_ptr());
  const auto after = registry.bytes.upper_bound(data);
  if (after == registry.bytes.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return data < begin + bytes;
}

}  // namespace lockstep::comm
