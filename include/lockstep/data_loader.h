// LibTorch's data loader with a DistributedSampler that is told what the loop has been handed, so that a
// snapshot in the middle of an epoch resumes with the next batch, with workers or without.
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

// The sampler as LibTorch's loader sees it. Copies are the same sampler.
class PassSampler {
 public:
  using BatchRequestType = BatchRequest;

  PassSampler(DistributedSampler sampler, bool in_order)
      : sampler_(std::move(sampler)), in_order_(in_order) {}

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

// The dataset as LibTorch's loader sees it: a batch keeps the number of its samples, which a collated one no
// longer tells.
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

// What LibTorch keeps to its own iterator.
template <class Dataset>
class BatchSource : public torch::data::StatelessDataLoader<CountedDataset<Dataset>, PassSampler> {
  using Loader = torch::data::StatelessDataLoader<CountedDataset<Dataset>, PassSampler>;

 public:
  using Loader::Loader;
  void begin_pass() {
    this->shuttle_.drain();  // of a loop that was left early
    this->begin();
  }
  auto next_batch() { return this->next(); }
};

// Throws UsageError for what LibTorch would crash on or for a sampler of more samples than there are.
void check_loader(const torch::data::DataLoaderOptions& options, std::optional<size_t> dataset_size,
                  const DistributedSampler& sampler);
// Throws UsageError for a dataset that does not tell its size.
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

// Iterated as LibTorch's, it hands out the same batches in the same order. Each counts for the sampler when
// it is handed to the loop's body (dereferenced), so save at the end of the body, after the step. A pass is
// over when the loop's end is reached, not when it is left early; what options.drop_last leaves out counts
// then.
//
// Every loop is a pass over one epoch: the one that was set, from where it was restored to; otherwise, after
// a pass that is over, the next epoch; after one that was left early, the same epoch from its beginning. So a
// forgotten set_epoch does not repeat an order.
//
// With workers and enforce_ordering(false) the position is exact in number but not in which samples it stands
// for: a run resumed in the middle of an epoch takes as many steps as are left, but may repeat or leave out
// samples of the batches that were in the workers' hands. Snapshots::save warns of that once.
//
// Not copyable. One thread at a time.
template <class Dataset>
class DataLoader {
 public:
  using BatchType = typename Dataset::BatchType;
  class Iterator;

  DataLoader(Dataset dataset, DistributedSampler sampler, torch::data::DataLoaderOptions options)
      : sampler_(std::move(sampler), options.workers() == 0 || options.enforce_ordering()),
        source_(detail::CountedDataset<Dataset>(std::move(dataset)), sampler_, std::move(options)) {}
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Begins a pass, and ends the one under way if there is one.
  Iterator begin() {
    ++pass_;
    source_.begin_pass();
    return Iterator(*this);
  }
  Iterator end() { return {}; }

  DistributedSampler& sampler() { return sampler_.sampler(); }
  // Wherever a sampler is taken, in a snapshot above all.
  operator DistributedSampler&() { return sampler(); }  // NOLINT(google-explicit-constructor)
  void set_epoch(int64_t epoch) { sampler().set_epoch(epoch); }
  int64_t epoch() { return sampler().epoch(); }

  const torch::data::FullDataLoaderOptions& options() const noexcept { return source_.options(); }
  // Ends the workers; there is no pass afterwards.
  void join() { source_.join(); }

  // Of one pass; copies are the same iterator.
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

// options: LibTorch's, or the size of a batch (of this rank's). The loader's sampler is the user's: what is
// called on either acts on both. The dataset must be stateless, as most are.
template <class Dataset>
std::unique_ptr<DataLoader<Dataset>> make_data_loader(Dataset dataset, DistributedSampler sampler,
                                                      torch::data::DataLoaderOptions options) {
  static_assert(
      !Dataset::is_stateful,
      "A stateful dataset (ChunkDataset) draws its samples itself; use torch::data::make_data_loader.");
  detail::check_loader(options, detail::size_of(dataset), sampler);
  return std::make_unique<DataLoader<Dataset>>(std::move(dataset), std::move(sampler), std::move(options));
}
template <class Dataset, class Sampler>
requires(!std::is_same_v<Sampler, DistributedSampler>) void make_data_loader(Dataset, Sampler,
                                                                             torch::data::DataLoaderOptions) {
  static_assert(
      sizeof(Dataset) == 0,
      "lockstep::make_data_loader takes a lockstep::DistributedSampler, or none: it makes one itself. "
      "For another kind of sampler there is torch::data::make_data_loader.");
}

// With a DistributedSampler of its own over the whole dataset: loader->sampler(), loader->set_epoch(epoch).
template <class Dataset>
std::unique_ptr<DataLoader<Dataset>> make_data_loader(Dataset dataset, torch::data::DataLoaderOptions options,
                                                      std::shared_ptr<ProcessGroup> group = default_group(),
                                                      SamplerOptions sampler_options = {}) {
  DistributedSampler sampler(detail::size_to_deal(detail::size_of(dataset)), std::move(group),
                             sampler_options);
  return lockstep::make_data_loader(std::move(dataset), std::move(sampler), std::move(options));
}
template <class Dataset>
std::unique_ptr<DataLoader<Dataset>> make_data_loader(Dataset dataset, torch::data::DataLoaderOptions options,
                                                      SamplerOptions sampler_options) {
  return lockstep::make_data_loader(std::move(dataset), std::move(options), default_group(), sampler_options);
}

}  // namespace lockstep
