#include "sharded/bucket_update.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>

namespace lockstep::sharded {

using comm::Range;
using Slot = reducer::Held::Slot;

namespace {

// Calls `body` with each slot that has elements in the range, and with these elements; between them with the
// padding as slot SIZE_MAX.
template <class Body>
void for_each_slot(const std::vector<Slot>& slots, const Range& range, Body&& body) {
  auto at = range.from;
  const auto first = std::partition_point(slots.begin(), slots.end(),
                                          [&](const Slot& slot) { return slot.range.end() <= range.from; });
  for (auto slot = first; slot != slots.end() && slot->range.from < range.end(); ++slot) {
    const auto here = comm::common(slot->range, range);
    if (here.count == 0) continue;
    if (at < here.from) body(SIZE_MAX, Range{at, here.from - at});
    body(static_cast<size_t>(slot - slots.begin()), here);
    at = here.end();
  }
  if (at < range.end()) body(SIZE_MAX, Range{at, range.end() - at});
}

const std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.data_ptr());
}

// Cheap, for values in the L1 cache; it notices changes that nobody made to deceive it.
uint64_t digest_of(const std::byte* values, int64_t bytes) {
  constexpr int kLanes = 32;
  constexpr int64_t kWord = sizeof(uint32_t);
  const auto count = bytes / kWord;
  uint32_t lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    uint32_t bits[kLanes];
    std::memcpy(bits, values + i * kWord, sizeof bits);
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = (lanes[lane] << 1 | lanes[lane] >> 31) ^ bits[lane];
  }
  uint64_t digest = 0;
  for (; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, values + i * kWord, sizeof bits);
    digest = digest * 0x9e3779b97f4a7c15 + bits;
  }
  for (const auto lane : lanes) digest = digest * 0x9e3779b97f4a7c15 + lane;
  return digest;
}

}  // namespace

BucketUpdate::BucketUpdate(reducer::Held bucket, std::vector<at::Tensor> parameters)
    : bucket_(std::move(bucket)), parameters_(std::move(parameters)), plans_(bucket_.slots.size()) {
  for (const auto& range : bucket_.mine) {
    mine_at_.push_back(elements_);
    elements_ += range.count;
  }
}

void BucketUpdate::need_state(int index, double value) {
  if (!states_[index].defined()) states_[index] = at::full({elements_}, value, at::kFloat);
}

void BucketUpdate::need_masters() {
  if (masters_.defined()) return;
  masters_ = at::empty({elements_}, at::kFloat);
  for (size_t i = 0; i < bucket_.mine.size(); ++i) {
    const auto& range = bucket_.mine[i];
    masters_.narrow(0, mine_at_[i], range.count).copy_(bucket_.values.narrow(0, range.from, range.count));
  }
}

int64_t BucketUpdate::state_bytes() const {
  auto bytes = masters_.defined() ? static_cast<int64_t>(masters_.nbytes()) : 0;
  for (const auto& state : states_) {
    if (state.defined()) bytes += static_cast<int64_t>(state.nbytes());
  }
  return bytes;
}

void BucketUpdate::apply(std::byte* values, const Range& range) {
  const auto size = static_cast<int64_t>(bucket_.values.itemsize());
  if (bucket_.common) check_values(range);
  for_each_slot(bucket_.slots, range, [&](size_t slot, const Range& here) {
    auto* const at = values + (here.from - range.from) * size;
    if (slot != SIZE_MAX && plans_[slot].update != nullptr) {
      update_slot(at, here, slot);
    } else {
      std::memcpy(at, bytes_of(bucket_.values) + here.from * size, here.count * size);
    }
  });
  if (bucket_.common) digests_[range.from] = digest_of(values, range.count * size);
}

// An update is divided into the same ranges each time.
void BucketUpdate::check_values(const Range& range) {
  const auto before = digests_.find(range.from);
  if (before == digests_.end() || changed_) return;
  const auto size = static_cast<int64_t>(bucket_.values.itemsize());
  if (digest_of(bytes_of(bucket_.values) + range.from * size, range.count * size) == before->second) return;
  for_each_slot(bucket_.slots, range, [&](size_t slot, const Range&) {
    if (slot != SIZE_MAX && !changed_) changed_ = slot;
  });
}

void BucketUpdate::update_slot(std::byte* values, const Range& range, size_t slot) {
  switch (bucket_.values.scalar_type()) {
    case at::kBFloat16:
      return update_masters(reinterpret_cast<at::BFloat16*>(values), range, slot);
    case at::kHalf:
      return update_masters(reinterpret_cast<at::Half*>(values), range, slot);
    default:
      return update(reinterpret_cast<float*>(values), bucket_.values.data_ptr<float>() + range.from,
                    place_of(range), range.count, slot);
  }
}

int64_t BucketUpdate::place_of(const Range& range) const {
  // The last of this rank's ranges that begins before.
  const auto mine = std::partition_point(bucket_.mine.begin(), bucket_.mine.end(),
                                         [&](const Range& each) { return each.end() <= range.from; });
  return mine_at_[mine - bucket_.mine.begin()] + range.from - mine->from;
}

void BucketUpdate::update(float* values, const float* parameters, int64_t place, int64_t count, size_t slot) {
  const auto& plan = plans_[slot];
  float* states[optim::kStates] = {};
  for (int i = 0; i < optim::kStates; ++i) {
    if (plan.states[i]) states[i] = states_[i].data_ptr<float>() + place;
  }
  plan.update(plan.step, values, parameters, states, count);
}

template <class Narrow>
void BucketUpdate::update_masters(Narrow* values, const Range& range, size_t slot) {
  constexpr int64_t kPiece = 1024;
  float updated[kPiece];
  const auto* const parameters = bucket_.values.data_ptr<Narrow>() + range.from;
  const auto place = place_of(range);
  auto* const masters = masters_.data_ptr<float>() + place;
  for (int64_t from = 0; from < range.count; from += kPiece) {
    const auto count = std::min(kPiece, range.count - from);
    for (int64_t i = 0; i < count; ++i) {
      updated[i] = static_cast<float>(values[from + i]);
      // The program may have changed the parameter.
      auto& master = masters[from + i];
      if (static_cast<Narrow>(master).x != parameters[from + i].x) {
        master = static_cast<float>(parameters[from + i]);
      }
    }
    update(updated, masters + from, place + from, count, slot);
    std::memcpy(masters + from, updated, count * sizeof(float));
    for (int64_t i = 0; i < count; ++i) values[from + i] = static_cast<Narrow>(updated[i]);
  }
}

// Calls `body` with the place in the state, the place in the slot, and the number of elements.
template <class Body>
void BucketUpdate::for_each_of_mine(size_t slot, Body&& body) const {
  const auto& whole = bucket_.slots[slot].range;
  for (size_t i = 0; i < bucket_.mine.size(); ++i) {
    const auto here = comm::common(bucket_.mine[i], whole);
    if (here.count > 0)
      body(mine_at_[i] + here.from - bucket_.mine[i].from, here.from - whole.from, here.count);
  }
}

void BucketUpdate::read(const at::Tensor& mine, size_t slot, float* whole) const {
  const auto* const from = mine.data_ptr<float>();
  for_each_of_mine(slot, [&](int64_t at, int64_t in_slot, int64_t count) {
    std::memcpy(whole + in_slot, from + at, count * sizeof(float));
  });
}

void BucketUpdate::write(const at::Tensor& mine, size_t slot, const float* whole) {
  auto* const to = mine.data_ptr<float>();
  for_each_of_mine(slot, [&](int64_t at, int64_t in_slot, int64_t count) {
    std::memcpy(to + at, whole + in_slot, count * sizeof(float));
  });
}

void SumOfSquares::apply(std::byte* values, const Range& range) {
  switch (bucket_.values.scalar_type()) {
    case at::kBFloat16:
      return add(reinterpret_cast<const at::BFloat16*>(values), range);
    case at::kHalf:
      return add(reinterpret_cast<const at::Half*>(values), range);
    default:
      return add(reinterpret_cast<const float*>(values), range);
  }
}

template <class Value>
void SumOfSquares::add(const Value* values, const Range& range) {
  for_each_slot(bucket_.slots, range, [&](size_t slot, const Range& here) {
    if (slot == SIZE_MAX || !counts_[slot]) return;
    // Several running sums keep the adders busy; their order is the same in every run.
    constexpr int kLanes = 16;
    double lanes[kLanes] = {};
    const auto* const from = values + (here.from - range.from);
    int64_t i = 0;
    for (; i + kLanes <= here.count; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const double value = static_cast<double>(from[i + lane]);
        lanes[lane] += value * value;
      }
    }
    for (int lane = 0; i < here.count; ++i, ++lane)
      lanes[lane] += static_cast<double>(from[i]) * static_cast<double>(from[i]);
    for (const double lane : lanes) sum_ += lane;
  });
}

}  // namespace lockstep::sharded
