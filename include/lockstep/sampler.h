// Assigns the samples of a dataset to the ranks. Returns the same indices as
// torch.utils.data.DistributedSampler, to LibTorch's data loaders or to a loop of your own, and records the
// position within an epoch, so that an interrupted run can resume there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <torch/data/samplers/base.h>

#include <lockstep/process_group.h>

namespace lockstep {

class DistributedSampler;
namespace data {
void warn_if_uncounted(const DistributedSampler& sampler);  // src/data/uncounted.h
}
namespace detail {
class PassSampler;  // data_loader.h
}

struct SamplerOptions {
  // Shuffles each epoch differently, with seed + epoch. Both must be the same on all ranks.
  bool shuffle = true;
  uint64_t seed = 0;
  // For a dataset size that is not a multiple of the number of ranks. false: samples from the start of the
  // epoch are repeated until every rank has the same number. true: the remainder is left out.
  bool drop_last = false;
  // For evaluation: every sample exactly once. The numbers of samples of two ranks then differ by at most
  // one, so weight metrics by count (lockstep/metrics.h). Excludes drop_last.
  bool exact = false;
};

// A position within an epoch. Independent of the rank and of the number of ranks, so a job of any size can
// resume from it.
struct SamplerState {
  int64_t epoch = 0;
  // Samples that all ranks together have used, from the start of the epoch's order; dataset_size at the end
  // of the epoch.
  uint64_t consumed = 0;
  uint64_t dataset_size = 0;
  uint64_t seed = 0;
  bool shuffle = true;

  bool operator==(const SamplerState&) const = default;
};

// Copies share one state, and a move is a copy: a call on the user's object also affects the data loader that
// holds a copy, from the loader's next reset() on. Use a sampler in one loader at a time. Thread-safe.
//
// No member function communicates. All ranks must pass the same dataset size and options, and must
// call set_epoch() and restore() with the same arguments. Invalid arguments throw UsageError and leave the
// sampler unchanged.
//
// lockstep::make_data_loader (lockstep/data_loader.h) makes a loader that reports to its sampler which
// batches the loop has received, with or without worker threads.
//
// Memory: none for an unshuffled order. A shuffled order takes 4 bytes per sample of the dataset while
// reset() or indices() builds it, and 4 bytes per sample of this rank afterwards: with 1e8 samples and N
// ranks, 400 MB for a few seconds, then 400/N MB. (Building takes 8 bytes per sample from 2^31 samples on;
// the result does above 2^32.) Does not touch the program's random generators.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // Takes rank and size from the group, again whenever an epoch starts or continues at another position. Does
  // not keep the group alive.
  explicit DistributedSampler(size_t dataset_size, std::shared_ptr<ProcessGroup> group = default_group(),
                              SamplerOptions options = {});
  DistributedSampler(size_t dataset_size, int num_replicas, int rank, SamplerOptions options = {});
  DistributedSampler(const DistributedSampler&) = default;
  DistributedSampler& operator=(const DistributedSampler&) = default;

  // Selects the epoch that the next reset() or indices() starts. A new epoch starts at its first sample. The
  // current epoch keeps its position, so calling this after restore() does not undo the restore. A running
  // iteration still returns samples of the old epoch, but epoch(), position() and state() report the new one
  // at once.
  void set_epoch(int64_t epoch);
  int64_t epoch() const;

  // The number of samples that this rank gets in a whole epoch: Python's len(sampler).
  size_t size() const;

  // For loops without a data loader: this rank's samples from position() to the end of the epoch. Does not
  // count them; call advance() for that.
  std::vector<size_t> indices() const;

  // Starts an iteration: at the position that restore(), advance() or set_epoch() with another epoch has set
  // since the last one; otherwise at the first sample of the same epoch, as in Python if set_epoch() is not
  // called (for a shuffled order this logs a warning). new_size (ChunkDataset passes one) replaces the
  // dataset size; UsageError if a restored position depends on the old size.
  void reset(torch::optional<size_t> new_size = {}) override;
  // Returns the next batch_size samples, fewer at the end of the epoch, and nothing after it.
  torch::optional<std::vector<size_t>> next(size_t batch_size) override;

  // The number of samples that this rank has used since it started or restored the epoch. With a
  // lockstep::DataLoader, these are the samples that the loop has received. With a loader of LibTorch's, they
  // are the samples that the loader has requested, until advance() is called. A loader with workers requests
  // batches ahead of the training, and only the program knows which of them it has trained on.
  int64_t position() const;
  // Reports that this rank has trained on `samples` more samples. Call it after each step with the size of
  // this rank's batch. After the first call within an iteration only these calls count, in later epochs as
  // well. Before an iteration it skips samples. Throws UsageError if this rank has not received that many
  // samples, and within an iteration of a lockstep::DataLoader, which counts by itself.
  void advance(size_t samples);

  // The same on all ranks that have made the same number of steps.
  SamplerState state() const;
  // The next reset() or indices() continues at this position. With the same number of ranks, the run
  // continues as if it had not been interrupted. With another number, the rest of the epoch is distributed
  // again: no sample is lost, and only the samples that pad the last round are repeated (drop_last leaves
  // that round out, exact leaves it uneven). If nothing is left, the next iteration is empty. Throws
  // UsageError if dataset_size or shuffle differ from this sampler's, or the seed of a shuffled order.
  void restore(const SamplerState& state);
  // Throws what restore() would throw. Changes nothing.
  void check(const SamplerState& state) const;

  // Write state() to an archive of LibTorch's, and restore() it from there. load() throws SnapshotError if
  // the archive does not hold the state of a sampler.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  friend class detail::PassSampler;
  friend void data::warn_if_uncounted(const DistributedSampler& sampler);

  // For lockstep::DataLoader. in_order: the loop receives the batches in the order of the samples.
  void begin_pass(bool in_order);
  void count(size_t samples);
  void end_pass();

  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared by all copies
};

}  // namespace lockstep
