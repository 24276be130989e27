#include "reducer/plan.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace lockstep::reducer {

namespace {

struct Open {
  std::vector<size_t> items;
  size_t bytes = 0;
  size_t last = 0;  // position in the order
};

}  // namespace

std::vector<std::vector<size_t>> make_plan(const std::vector<PlanItem>& items,
                                           const std::vector<size_t>& order, PlanCaps caps) {
  using Key = std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex>;
  std::map<Key, Open> open;
  std::map<Key, size_t> closed_of;
  std::vector<Open> closed;
  const auto close = [&](const Key& key, Open& bucket) {
    if (bucket.items.empty()) return;
    ++closed_of[key];
    closed.push_back(std::exchange(bucket, {}));
  };

  for (size_t position = 0; position < order.size(); ++position) {
    const size_t index = order[position];
    const auto& item = items[index];
    if (item.sparse) {
      closed.push_back({{index}, item.bytes, position});
      continue;
    }
    const Key key{item.dtype, item.device.type(), item.device.index()};
    auto& bucket = open[key];
    const size_t cap = closed_of[key] == 0 ? caps.first : caps.others;
    // An item that does not fit starts a new bucket, so that no bucket is much larger than its cap.
    if (bucket.bytes + item.bytes > cap) close(key, bucket);
    bucket.items.push_back(index);
    bucket.bytes += item.bytes;
    bucket.last = position;
    if (bucket.bytes >= (closed_of[key] == 0 ? caps.first : caps.others)) close(key, bucket);
  }
  for (auto& [key, bucket] : open) close(key, bucket);

  std::sort(closed.begin(), closed.end(), [](const Open& a, const Open& b) { return a.last < b.last; });
  std::vector<std::vector<size_t>> plan;
  plan.reserve(closed.size());
  for (auto& bucket : closed) plan.push_back(std::move(bucket.items));
  return plan;
}

}  // namespace lockstep::reducer
