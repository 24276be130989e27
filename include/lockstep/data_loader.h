// LibTorch's data loader, with a DistributedSampler that counts the batches that the loop has received. A
// snapshot taken in the middle of an epoch therefore resumes with the next batch, with or without workers.
//
//   auto loader = lockstep::make_data_loader(std::move(dataset), 32);
//   auto at = snapshots.resume(ddp, optimizer, *loader);
//   for (auto epoch = at.epoch; epoch < epochs; ++epoch) {
//     loader->set_epoch(epoch);
//     for (auto& batch : *loader) {
//       …
//       snapshots.save(ddp, optimizer, *loader, {.epoch = epoch});
//     }
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/data/dataloader/stateless.h>
#include <torch/data/dataloader_options.h>

#include <lockstep/process_group.h>
#include <lockstep/sampler.h>

namespace lockstep {

namespace detail {

struct BatchRequest {
  std::vector<size_t> samples;
  size_t size() const { return samples.size(); }
};

template <class Batch>
struct LoadedBatch {
  Batch batch;
  size_t samples;
  bool counted = false;
};

// The interface of the sampler that LibTorch's loader expects. Copies share one sampler.
class PassSampler {
 public:
  using BatchRequestType = BatchRequest;

  PassSampler(const DistributedSampler& sampler, bool in_order) : sampler_(sampler), in_order_(in_order) {}

  void reset() { sampler_.begin_pass(in_order_); }
  torch::optional<BatchRequest> next(size_t batch_size) {
    auto samples = sampler_.next(batch_size);
    if (!samples) return {};
    return BatchRequest{std::move(*samples)};
  }

  void count(size_t samples) { sampler_.count(samples); }
  void end_pass() { sampler_.end_pass(); }
  DistributedSampler& sampler() { return sampler_; }

 private:
  DistributedSampler sampler_;
  bool in_order_;
};

// The interface of the dataset that LibTorch's loader expects. A batch carries the number of its samples,
// which cannot be read from a collated batch.
template <class Dataset>
class CountedDataset {
 public:
  using BatchType = LoadedBatch<typename Dataset::BatchType>;

  explicit CountedDataset(Dataset dataset) : dataset_(std::move(dataset)) {}
  BatchType get_batch(BatchRequest request) {
    const auto samples = request.size();
    return {dataset_.get_batch(std::move(request.samples)), samples};
  }

 private:
  Dataset dataset_;
};

// Gives DataLoader access to what LibTorch's loader offers only to its own iterator.
template <class Dataset>
class BatchSource : public torch::data::StatelessDataLoader<CountedDataset<Dataset>, PassSampler> {
  using Loader = torch::data::StatelessDataLoader<CountedDataset<Dataset>, PassSampler>;

 public:
  using Loader::Loader;
  void begin_pass() {
    this->shuttle_.drain();  // batches of a loop that ended early
    this->begin();
  }
  auto next_batch() { return this->next(); }
};

// Throws UsageError for options with which LibTorch would crash, and for a sampler of more samples than the
// dataset has.
void check_loader(const torch::data::DataLoaderOptions& options, std::optional<size_t> dataset_size,
                  const DistributedSampler& sampler);
// Throws UsageError if the size of the dataset is unknown.
size_t size_to_deal(std::optional<size_t> dataset_size);
[[noreturn]] void throw_loop_within_loop();

template <class Dataset>
std::optional<size_t> size_of(const Dataset& dataset) {
  if constexpr (requires { dataset.size(); }) {
    if (const auto size = dataset.size()) return *size;
  }
  return std::nullopt;
}

}  // namespace detail

// Returns the same batches as LibTorch's loader, in the same order. A batch counts as used when the loop
// dereferences the iterator, so save a snapshot at the end of the loop's body, after the step. Reaching the
// end of the loop ends the pass and counts the samples that options.drop_last leaves out. Leaving the loop
// early does not end the pass.
//
// Each loop is a pass over one epoch: the epoch passed to set_epoch(), or the restored one from the restored
// position. Without either, it is the next epoch if the last pass reached its end, and the same epoch from
// its start if the last loop was left early. So a program that never calls set_epoch() does not repeat an
// order.
//
// With workers and enforce_ordering(false), the position counts the right number of samples, but not
// necessarily the right ones: a run resumed in the middle of an epoch makes the remaining number of steps,
// but may repeat or omit samples that the workers had loaded. Snapshots::save logs one warning about this.
//
// Does not communicate. Not copyable. Not thread-safe.
template <class Dataset>
class DataLoader {
 public:
  using BatchType = typename Dataset::BatchType;
  class Iterator;

  DataLoader(Dataset dataset, const DistributedSampler& sampler, torch::data::DataLoaderOptions options)
      : sampler_(sampler, options.workers() == 0 || options.enforce_ordering()),
        source_(detail::CountedDataset<Dataset>(std::move(dataset)), sampler_, options) {}
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Starts a pass, and abandons the current one if there is one. Blocks until the first batch is loaded.
  // Throws what the dataset throws.
  Iterator begin() {
    ++pass_;
    source_.begin_pass();
    return Iterator(*this);
  }
  Iterator end() { return {}; }

  DistributedSampler& sampler() { return sampler_.sampler(); }
  // So that a loader can be passed wherever a sampler is expected, e.g. to Snapshots::save.
  operator DistributedSampler&() { return sampler(); }  // NOLINT(google-explicit-constructor)
  void set_epoch(int64_t epoch) { sampler().set_epoch(epoch); }
  int64_t epoch() { return sampler().epoch(); }

  const torch::data::FullDataLoaderOptions& options() const noexcept { return source_.options(); }
  // Stops the worker threads. The loader cannot be iterated afterwards.
  void join() { source_.join(); }

  // An iterator of one pass. Copies share one position. ++ blocks until the next batch is loaded; it throws
  // what the dataset throws, and UsageError if another pass over the same loader has started.
  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    using value_type = BatchType;
    using pointer = BatchType*;
    using reference = BatchType&;
    using iterator_category = std::input_iterator_tag;

    Iterator() = default;

    reference operator*() const {
      auto& now = state_->now.value();
      if (!std::exchange(now.counted, true) && state_->current()) state_->loader.sampler_.count(now.samples);
      return now.batch;
    }
    pointer operator->() const { return &**this; }
    Iterator& operator++() {
      state_->fetch();
      return *this;
    }
    bool operator==(const Iterator& other) const {
      return at_end() == other.at_end() && (at_end() || state_ == other.state_);
    }

   private:
    friend class DataLoader;
    struct State {
      DataLoader& loader;
      uint64_t pass;
      std::optional<detail::LoadedBatch<BatchType>> now;

      bool current() const { return pass == loader.pass_; }
      void fetch() {
        if (!current()) detail::throw_loop_within_loop();
        now.reset();
        if (auto next = loader.source_.next_batch()) {
          now.emplace(std::move(*next));
        } else {
          loader.sampler_.end_pass();
        }
      }
    };

    explicit Iterator(DataLoader& loader)
        : state_(std::make_shared<State>(State{loader, loader.pass_, std::nullopt})) {
      state_->fetch();
    }
    bool at_end() const { return !state_ || !state_->now; }

    std::shared_ptr<State> state_;
  };

 private:
  detail::PassSampler sampler_;
  detail::BatchSource<Dataset> source_;
  uint64_t pass_ = 0;
};

// options: LibTorch's, or just the batch size of this rank. The loader uses the sampler passed in, not a
// separate one: calls on either object affect both. The dataset must be stateless, as most are. Throws
// UsageError for a batch size of 0, and for a sampler of more samples than the dataset has. Does not
// communicate.
template <class Dataset>
std::unique_ptr<DataLoader<Dataset>> make_data_loader(Dataset dataset, DistributedSampler sampler,
                                                      torch::data::DataLoaderOptions options) {
  static_assert(
      !Dataset::is_stateful,
      "A stateful dataset (ChunkDataset) draws its samples itself; use torch::data::make_data_loader.");
  detail::check_loader(options, detail::size_of(dataset), sampler);
  return std::make_unique<DataLoader<Dataset>>(std::move(dataset), sampler, options);
}
template <class Dataset, class Sampler>
requires(!std::is_same_v<Sampler, DistributedSampler>) void make_data_loader(Dataset, Sampler,
                                                                             torch::data::DataLoaderOptions) {
  static_assert(
      sizeof(Dataset) == 0,
      "lockstep::make_data_loader takes a lockstep::DistributedSampler, or none: it makes one itself. "
      "For another kind of sampler there is torch::data::make_data_loader.");
}

// Makes a DistributedSampler over the whole dataset: loader->sampler(), loader->set_epoch(epoch). Throws
// UsageError if the dataset does not report its size.
template <class Dataset>
std::unique_ptr<DataLoader<Dataset>> make_data_loader(Dataset dataset, torch::data::DataLoaderOptions options,
                                                      std::shared_ptr<ProcessGroup> group = default_group(),
                                                      SamplerOptions sampler_options = {}) {
  DistributedSampler sampler(detail::size_to_deal(detail::size_of(dataset)), std::move(group),
                             sampler_options);
  return lockstep::make_data_loader(std::move(dataset), sampler, options);
}
template <class Dataset>
std::unique_ptr<DataLoader<Dataset>> make_data_loader(Dataset dataset, torch::data::DataLoaderOptions options,
                                                      SamplerOptions sampler_options) {
  return lockstep::make_data_loader(std::move(dataset), options, default_group(), sampler_options);
}

}  // namespace lockstep
