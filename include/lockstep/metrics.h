// Metrics over all ranks: averages weighted by each rank's number of samples, and the predictions for a whole
// dataset without duplicates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

namespace lockstep {

// A mean over samples, first on this rank, then over all ranks.
//
//   Average loss, accuracy;
//   for (auto& batch : *loader) {
//     …
//     loss.add(batch_loss, rows);
//     accuracy.add_sum(output.argmax(1).eq(batch.target).sum(), rows);
//   }
//   const double mean_loss = loss.all_reduce(group);
//
// Sums in double precision. Tensors are summed on their own device, which is synchronized only when the mean
// is read. Not thread-safe.
class Average {
 public:
  // Adds the mean over `count` samples; a loss is such a mean by default. A count of 0 adds nothing, whatever
  // the value, because the mean over no samples is NaN. Throws UsageError for a negative count.
  void add(double mean, int64_t count = 1);
  // Throws UsageError unless the tensor has exactly one element.
  void add(const at::Tensor& mean, int64_t count = 1);
  // Adds the sum over `count` samples.
  void add_sum(double sum, int64_t count);
  void add_sum(const at::Tensor& sum, int64_t count);

  // The mean over the samples of this rank; NaN if there are none.
  double local() const;
  int64_t count() const { return count_; }
  // The mean over the samples of all ranks, the same on all of them, bit for bit; NaN if there are none. A
  // collective: every rank must call it, with or without samples. Does not reset the average.
  double all_reduce(ProcessGroup& group) const;
  double all_reduce(const std::shared_ptr<ProcessGroup>& group = default_group()) const;
  void reset();

 private:
  double sum() const;

  double sum_ = 0;
  at::Tensor tensor_sum_;  // sum of the values added as tensors; undefined if there are none
  int64_t count_ = 0;
};

struct GatherOptions {
  // The only rank that receives the result; -1: all ranks.
  int root = -1;
};

// Collects the rows that the ranks computed for the samples of a dataset, in the order of the dataset: row i
// of the result belongs to sample i. `values` has one row for each of `indices`, the samples that this rank
// has processed. If several ranks have processed a sample (a sampler that pads repeats some), the row of the
// lowest rank is used.
//
// A collective: every rank of the group must call it, including a rank without rows, whose tensor may be
// undefined or of any type. All ranks, or only options.root, receive the result on the CPU; the others
// receive an undefined tensor. A rank holds the result, all indices, and the rows of one other rank at a
// time.
//
// Throws on all ranks, before any row is sent: UsageError on a rank with invalid arguments, and MismatchError
// that names it on the others; MismatchError on all ranks if dtypes, row shapes, dataset sizes or roots
// differ, or if samples are missing.
at::Tensor gather_by_index(const at::Tensor& values, const std::vector<size_t>& indices, size_t dataset_size,
                           ProcessGroup& group, GatherOptions options = {});
at::Tensor gather_by_index(const at::Tensor& values, const std::vector<size_t>& indices, size_t dataset_size,
                           const std::shared_ptr<ProcessGroup>& group = default_group(),
                           GatherOptions options = {});

}  // namespace lockstep
