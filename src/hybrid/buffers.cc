#include "hybrid/buffers.h"

#include <algorithm>
#include <new>
#include <utility>

namespace lockstep::hybrid {

namespace {

// As many as an all-reduce between three machines has under way.
constexpr size_t kKept = 32;
constexpr size_t kGranule = size_t{64} << 10;

}  // namespace

Buffer Buffers::take(size_t bytes) {
  bytes = (bytes + kGranule - 1) / kGranule * kGranule;
  std::unique_ptr<std::byte[]> data;
  {
    const std::lock_guard lock(pool_->mutex);
    auto& free = pool_->free;
    const auto found =
        std::find_if(free.rbegin(), free.rend(), [&](const auto& each) { return each.bytes == bytes; });
    if (found != free.rend()) {
      data = std::move(found->data);
      free.erase(std::next(found).base());
    }
  }
  if (!data) data.reset(new std::byte[bytes]);
  return {data.release(), [pool = pool_, bytes](std::byte* memory) {
            std::unique_ptr<std::byte[]> owned(memory);
            const std::lock_guard lock(pool->mutex);
            if (pool->free.size() >= kKept) pool->free.erase(pool->free.begin());
            pool->free.push_back({std::move(owned), bytes});
          }};
}

}  // namespace lockstep::hybrid
