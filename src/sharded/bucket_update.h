// The update of one bucket by this rank: its part of the optimizer's state, and the transform that an update
// (comm/update.h) applies to the averaged gradients.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "optim/rules.h"
#include "reducer/updater.h"

namespace lockstep::sharded {

class BucketUpdate final : public comm::Transform {
 public:
  // `parameters`: by slot.
  BucketUpdate(reducer::Held bucket, std::vector<at::Tensor> parameters);

  const reducer::Held& bucket() const { return bucket_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  void set_bucket(const reducer::Held& bucket) { bucket_ = bucket; }

  // How a slot is updated in the next update; null: it keeps its values. `states`: which of the arrays it
  // has.
  struct Plan {
    optim::Update update = nullptr;
    optim::Step step;
    std::array<bool, optim::kStates> states{};
  };
  std::vector<Plan>& plans() { return plans_; }  // by slot

  // Makes sure that there is such an array; filled with `value`.
  void need_state(int index, double value);

  // Parameters that are narrower than a float: this rank's part of them, as floats, is what is updated.
  bool narrow() const { return bucket_.values.scalar_type() != at::kFloat; }
  // Makes sure that there is such an array, with the values of the parameters.
  void need_masters();
  bool has_masters() const { return masters_.defined(); }
  // As read_state() and write_state().
  void read_masters(size_t slot, float* whole) const { read(masters_, slot, whole); }
  void write_masters(size_t slot, const float* whole) { write(masters_, slot, whole); }

  // This rank's elements of a slot's state, in an array of all elements of the slot. `has` tells whether
  // there is such a state.
  bool has_state(int index) const { return states_[index].defined(); }
  void read_state(int index, size_t slot, float* whole) const { read(states_[index], slot, whole); }
  void write_state(int index, size_t slot, const float* whole) { write(states_[index], slot, whole); }
  int64_t elements() const { return elements_; }  // of this rank
  int64_t state_bytes() const;

  // Of common memory: the first slot whose values were not those of the update before; forgets it.
  std::optional<size_t> take_changed() { return std::exchange(changed_, std::nullopt); }
  // Before an update whose values may be others.
  void forget_values() { digests_.clear(); }

  void apply(std::byte* values, const comm::Range& range) override;

 private:
  template <class Body>
  void for_each_of_mine(size_t slot, Body&& body) const;
  void read(const at::Tensor& mine, size_t slot, float* whole) const;
  void write(const at::Tensor& mine, size_t slot, const float* whole);
  // Where the state of a range is that this rank updates.
  int64_t place_of(const comm::Range& range) const;
  // Of the average gradients `values`.
  void update(float* values, const float* parameters, int64_t place, int64_t count, size_t slot);
  template <class Narrow>
  void update_masters(Narrow* values, const comm::Range& range, size_t slot);
  void update_slot(std::byte* values, const comm::Range& range, size_t slot);
  void check_values(const comm::Range& range);

  reducer::Held bucket_;
  const std::vector<at::Tensor> parameters_;
  std::vector<int64_t> mine_at_;  // where the state of each of this rank's ranges begins
  int64_t elements_ = 0;          // of all of them
  std::array<at::Tensor, optim::kStates> states_;
  at::Tensor masters_;
  std::vector<Plan> plans_;
  std::unordered_map<int64_t, uint64_t> digests_;  // of the values of each range, by its first element
  std::optional<size_t> changed_;
};

// The sum of the squares of the averaged gradients that this rank would update, of some parameters.
class SumOfSquares final : public comm::Transform {
 public:
  template <class Counts>
  SumOfSquares(const reducer::Held& bucket, const Counts& counts) : bucket_(bucket) {
    for (const auto& slot : bucket.slots) counts_.push_back(slot.used && counts(slot));
  }
  void apply(std::byte* values, const comm::Range& range) override;
  double sum() const { return sum_; }

 private:
  template <class Value>
  void add(const Value* values, const comm::Range& range);

  const reducer::Held& bucket_;
  std::vector<bool> counts_;  // by slot
  double sum_ = 0;
};

}  // namespace lockstep::sharded
