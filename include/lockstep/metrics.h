// Metrics over all ranks: averages weighed by how many samples each rank had, and the predictions for a whole
// dataset, each once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

namespace lockstep {

// A mean over samples.
//
//   Average loss, accuracy;
//   for (auto& batch : *loader) {
//     …
//     loss.add(batch_loss, rows);
//     accuracy.add_sum(output.argmax(1).eq(batch.target).sum(), rows);
//   }
//   const double mean_loss = loss.all_reduce(group);
//
// Summed in double. Tensors are added up where they are: a device is waited for only when the mean is asked
// for. Not thread-safe.
class Average {
 public:
  // The mean over `count` samples, as a loss is by default. With a count of 0 it adds nothing, whatever the
  // value: the mean over no samples is not a number.
  void add(double mean, int64_t count = 1);
  // A tensor must have one element, or it is a UsageError.
  void add(const at::Tensor& mean, int64_t count = 1);
  // The sum over `count` samples.
  void add_sum(double sum, int64_t count);
  void add_sum(const at::Tensor& sum, int64_t count);

  // Of this rank alone; NaN when nothing was added.
  double local() const;
  int64_t count() const { return count_; }
  // Over the samples of all ranks, the same on all of them to the bit; NaN when there were none at all. Every
  // rank must call it, also one that has no samples. What was added stays.
  double all_reduce(ProcessGroup& group) const;
  double all_reduce(const std::shared_ptr<ProcessGroup>& group = default_group()) const;
  void reset();

 private:
  double sum() const;

  double sum_ = 0;
  at::Tensor tensor_sum_;  // of what came as tensors; undefined until one has
  int64_t count_ = 0;
};

struct GatherOptions {
  // The only rank that gets the result; -1: all of them.
  int root = -1;
};

// The rows that the ranks computed for the samples of a dataset, in the order of the dataset: row i of the
// result is the one for sample i. `values` has one row for each of `indices`, which are the samples that this
// rank had. A sample that several ranks had (a sampler that pads repeats some) is taken from the first.
//
// Every rank must call it, also one without rows, whose tensor then may be of any kind or undefined. All get
// the result, on the CPU; with a root only that rank, and the others an undefined tensor. A rank holds the
// result, all indices, and one other rank's rows at a time.
//
// Throws, on all ranks and before any row moves: UsageError where the arguments cannot be right (and
// MismatchError, naming that rank, on the others); MismatchError when dtypes, shapes of a row, dataset sizes
// or roots differ, or when samples are missing.
at::Tensor gather_by_index(const at::Tensor& values, const std::vector<size_t>& indices, size_t dataset_size,
                           ProcessGroup& group, GatherOptions options = {});
at::Tensor gather_by_index(const at::Tensor& values, const std::vector<size_t>& indices, size_t dataset_size,
                           const std::shared_ptr<ProcessGroup>& group = default_group(),
                           GatherOptions options = {});

}  // namespace lockstep
