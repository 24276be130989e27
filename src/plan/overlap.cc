#include "plan/overlap.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::plan {

std::vector<PlannedBucket> buckets_of(Scheme scheme, const Job& job) {
  const double bucket_bytes = bucket_bytes_of(scheme, job);
  const double total_bytes = job.gradient_bytes();
  const double backward_s = job.step_s * job.backward_share;
  const double tensor_bytes = job.tensors > 0 ? total_bytes / job.tensors : 0;
  const double rounding_bytes = 1e-9 * total_bytes;
  std::vector<PlannedBucket> buckets;
  for (double left_bytes = total_bytes; left_bytes > 0;) {
    double bytes = buckets.empty() ? std::min(job.first_bucket_bytes, bucket_bytes) : bucket_bytes;
    // As many whole tensors as fit, at least one.
    if (job.tensors > 0) {
      bytes = std::max(1.0, std::floor((bytes + rounding_bytes) / tensor_bytes)) * tensor_bytes;
    }
    if (bytes > left_bytes - rounding_bytes) bytes = left_bytes;
    left_bytes -= bytes;
    buckets.push_back({.bytes = bytes, .ready_s = backward_s * (1 - left_bytes / total_bytes)});
  }
  return buckets;
}

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The state between two events: a bucket is ready, an exchange is done, the backward pass is done.
class Step {
 public:
  Step(const std::vector<PlannedBucket>& buckets, const std::vector<Cost>& costs, double backward_s,
       double contention)
      : buckets_(buckets), costs_(costs), backward_s_(backward_s), contention_(contention) {
    overlap_.buckets.resize(buckets.size());
  }

  Overlap run() {
    while (computing() || next_ < buckets_.size()) {
      if (!exchanging_ && next_ < buckets_.size() && buckets_[next_].ready_s <= computed_s_) begin();
      advance();
    }
    overlap_.ended_s = now_s_;
    return std::move(overlap_);
  }

 private:
  bool computing() const { return computed_s_ < backward_s_; }

  void begin() {
    exchanging_ = true;
    follows_ = next_ > 0 && overlap_.buckets[next_ - 1].ended_s == now_s_;
    left_ = 1;
    overlap_.buckets[next_].begun_s = now_s_;
  }

  // Goes on to the next event.
  void advance() {
    const bool was_computing = computing();
    const double core_share = was_computing ? 1 / (1 + contention_) : 1;
    const double exchange_s = exchanging_ ? duration_s(costs_[next_], core_share, follows_) : kNever;
    // The core's time that the exchange takes is missing for computing.
    const double lost = exchanging_ && exchange_s > 0 ? contention_ * costs_[next_].core_s / exchange_s : 0;
    const double speed = was_computing ? 1 - lost : 0;

    // While a bucket is exchanged, the next one may become ready, but it does not begin.
    const bool awaited = !exchanging_ && next_ < buckets_.size();
    const double goal_s = awaited ? std::min(backward_s_, buckets_[next_].ready_s) : backward_s_;
    const double until_goal_s = was_computing ? (goal_s - computed_s_) / speed : kNever;
    const double until_done_s = exchanging_ ? left_ * exchange_s : kNever;

    if (until_goal_s <= until_done_s) {
      now_s_ += until_goal_s;
      computed_s_ = goal_s;
      if (exchanging_ && exchange_s > 0) left_ = std::max(0.0, left_ - until_goal_s / exchange_s);
    } else {
      now_s_ += until_done_s;
      computed_s_ = std::min(backward_s_, computed_s_ + speed * until_done_s);
      end();
    }
    if (was_computing && !computing()) overlap_.computed_s = now_s_;
  }

  void end() {
    overlap_.buckets[next_].ended_s = now_s_;
    exchanging_ = false;
    ++next_;
  }

  const std::vector<PlannedBucket>& buckets_;
  const std::vector<Cost>& costs_;
  const double backward_s_, contention_;

  double now_s_ = 0;
  double computed_s_ = 0;  // of the backward pass, without what the exchange took from it
  size_t next_ = 0;        // the bucket that is exchanged, or will be
  bool exchanging_ = false;
  bool follows_ = false;  // it began when the one before was done
  double left_ = 0;       // of the current exchange
  Overlap overlap_;
};

}  // namespace

Overlap simulate(const std::vector<PlannedBucket>& buckets, const std::vector<Cost>& costs, double backward_s,
                 double contention) {
  return Step(buckets, costs, backward_s, contention).run();
}

}  // namespace lockstep::plan
