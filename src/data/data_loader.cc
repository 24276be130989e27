#include <fmt/format.h>

#include <lockstep/data_loader.h>
#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::detail {

void check_loader(const torch::data::DataLoaderOptions& options, std::optional<size_t> dataset_size,
                  const DistributedSampler& sampler) {
  if (options.batch_size() == 0) {
    throw UsageError(base::compose({.what = "make_data_loader got a batch size of 0",
                                    .hint = "it is the number of samples that this rank gets in a step"}));
  }
  if (options.workers() > 0 && options.max_jobs() && *options.max_jobs() == 0) {
    throw UsageError(base::compose(
        {.what = fmt::format("make_data_loader got {} workers and max_jobs 0", options.workers()),
         .hint = "max_jobs is how many batches are asked for ahead; leave it out for two for each worker"}));
  }
  const auto to_deal = sampler.state().dataset_size;
  if (dataset_size && *dataset_size < to_deal) {
    throw UsageError(
        base::compose({.what = "make_data_loader got a sampler of another dataset",
                       .evidence = fmt::format("the sampler deals {} samples, and the dataset has {}",
                                               to_deal, *dataset_size),
                       .hint = "make it with DistributedSampler(dataset.size().value(), group)"}));
  }
}

size_t size_to_deal(std::optional<size_t> dataset_size) {
  if (dataset_size) return *dataset_size;
  throw UsageError(base::compose(
      {.what = "make_data_loader cannot deal a dataset that does not tell its size",
       .hint =
           "give it a DistributedSampler made with the number of samples, or let dataset.size() return it"}));
}

void throw_loop_within_loop() {
  throw UsageError(base::compose(
      {.what = "a data loader was iterated anew within its own loop",
       .evidence = "a loader has one pass under way at a time, and beginning another ended this one",
       .hint = "make a second loader for the inner loop"}));
}

}  // namespace lockstep::detail
