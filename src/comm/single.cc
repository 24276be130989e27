#include "comm/single.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>

namespace lockstep::comm {

namespace {

struct Done final : Work::State {
  using State::State;
  void complete() override {}
  bool is_done() override { return true; }
};

}  // namespace

void SingleTransport::run(Request& request) {
  if (request.give.empty() || request.take.empty()) return;
  const auto &from = request.give[0], &to = request.take[0];
  if (from.data == to.data || from.bytes == 0) return;
  if (request.device.is_cpu()) {
    std::memmove(to.data, from.data, from.bytes);
    return;
  }
  const auto bytes_at = [&](const Piece& piece) {
    return at::from_blob(piece.data, {static_cast<int64_t>(piece.bytes)},
                         at::TensorOptions().dtype(at::kByte).device(request.device));
  };
  bytes_at(to).copy_(bytes_at(from));
}

std::shared_ptr<Work::State> SingleTransport::start(Request&& request) {
  run(request);
  return std::make_shared<Done>(std::move(request));
}

// In blocks that stay in the cache.
void SingleTransport::update(Request& request, Transform& transform) {
  constexpr int64_t kBlockBytes = 8192;
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(request.dtype));
  const auto whole = updated_ranges(request).front();
  alignas(64) std::byte block[kBlockBytes];
  for (int64_t from = 0; from < whole.count; from += kBlockBytes / element_bytes) {
    const Range range{from, std::min(kBlockBytes / element_bytes, whole.count - from)};
    const auto bytes = static_cast<size_t>(range.count * element_bytes);
    std::memcpy(block, request.give[0].data + from * element_bytes, bytes);
    transform.apply(block, range);
    if (request.take[0].bytes > 0) std::memcpy(request.take[0].data + from * element_bytes, block, bytes);
  }
}

std::vector<Range> SingleTransport::updated_ranges(const Request& request) const {
  return {{0, static_cast<int64_t>(request.give[0].bytes / c10::elementSize(request.dtype))}};
}

}  // namespace lockstep::comm
