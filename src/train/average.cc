// Average.
#include <fmt/format.h>
#include <limits>

#include <ATen/ATen.h>

#include <lockstep/error.h>
#include <lockstep/metrics.h>

#include "base/error_text.h"
#include "comm/control.h"
#include "comm/purpose.h"
#include "train/group_of.h"

namespace lockstep {

namespace {

void check_count(int64_t count) {
  if (count >= 0) return;
  throw UsageError(base::compose({.what = "an Average cannot add this",
                                  .evidence = fmt::format("the count is {}", count),
                                  .hint = "give the number of samples of the batch"}));
}

void check_scalar(const at::Tensor& value) {
  if (value.defined() && value.numel() == 1 && !value.is_complex()) return;
  throw UsageError(
      base::compose({.what = "an Average cannot add this",
                     .evidence = value.defined() ? fmt::format("the tensor has {} {} elements", value.numel(),
                                                               c10::toString(value.scalar_type()))
                                                 : "the tensor is undefined",
                     .hint = "give one number, as mean() or sum() make it"}));
}

double mean_of(double sum, double count) {
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

void Average::add(double mean, int64_t count) { add_sum(mean * static_cast<double>(count), count); }

void Average::add(const at::Tensor& mean, int64_t count) {
  check_scalar(mean);
  add_sum(mean.detach().to(at::kDouble) * static_cast<double>(count), count);
}

void Average::add_sum(double sum, int64_t count) {
  check_count(count);
  if (count == 0) return;
  sum_ += sum;
  count_ += count;
}

void Average::add_sum(const at::Tensor& sum, int64_t count) {
  check_scalar(sum);
  check_count(count);
  if (count == 0) return;
  const auto part = sum.detach().to(at::kDouble).reshape({});
  tensor_sum_ = tensor_sum_.defined() ? tensor_sum_ + part.to(tensor_sum_.device()) : part.clone();
  count_ += count;
}

double Average::sum() const { return tensor_sum_.defined() ? sum_ + tensor_sum_.item<double>() : sum_; }

double Average::local() const { return mean_of(sum(), static_cast<double>(count_)); }

double Average::all_reduce(ProcessGroup& group) const {
  const comm::Purpose purpose("Average::all_reduce");
  // Every rank adds in rank order: the same bits everywhere.
  struct Part {
    double sum = 0;
    int64_t count = 0;
  };
  double all_sums = 0;
  int64_t all_counts = 0;
  for (const auto& part : comm::control_of(group).gather("Average::all_reduce", Part{sum(), count_})) {
    all_sums += part.sum;
    all_counts += part.count;
  }
  return mean_of(all_sums, static_cast<double>(all_counts));
}

double Average::all_reduce(const std::shared_ptr<ProcessGroup>& group) const {
  return all_reduce(train::group_of(group, "Average::all_reduce"));
}

void Average::reset() { *this = {}; }

}  // namespace lockstep
