#include <fmt/format.h>

#include <lockstep/data_loader.h>
#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::detail {

void check_loader(const torch::data::DataLoaderOptions& options, std::optional<size_t> dataset_size,
                  const DistributedSampler& sampler) {
  if (options.batch_size() == 0) {
    throw UsageError(
        base::compose({.what = "make_data_loader got a batch size of 0",
                       .hint = "pass the number of samples that this rank processes in a step"}));
  }
  if (options.workers() > 0 && options.max_jobs() && *options.max_jobs() == 0) {
    throw UsageError(base::compose(
        {.what = fmt::format("make_data_loader got {} workers and max_jobs 0", options.workers()),
         .hint = "max_jobs is the number of batches to prefetch; leave it out for two per worker"}));
  }
  const auto to_deal = sampler.state().dataset_size;
  if (dataset_size && *dataset_size < to_deal) {
    throw UsageError(
        base::compose({.what = "make_data_loader got a sampler of another dataset",
                       .evidence = fmt::format("the sampler is for {} samples, but the dataset has {}",
                                               to_deal, *dataset_size),
                       .hint = "make it with DistributedSampler(dataset.size().value(), group)"}));
  }
}

size_t size_to_deal(std::optional<size_t> dataset_size) {
  if (dataset_size) return *dataset_size;
  throw UsageError(base::compose(
      {.what = "make_data_loader needs to know the size of the dataset",
       .hint =
           "pass a DistributedSampler made with the number of samples, or let dataset.size() return it"}));
}

void throw_loop_within_loop() {
  throw UsageError(
      base::compose({.what = "a data loader was iterated again within its own loop",
                     .evidence = "a loader runs one pass at a time, and starting another has ended this one",
                     .hint = "make a second loader for the inner loop"}));
}

}  // namespace lockstep::detail
