// Deals the samples of a dataset to the ranks: torch.utils.data.DistributedSampler, index for index, for
// LibTorch's data loaders and by hand; and knows how far an epoch has come, to go on after an interruption.
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
  // Each epoch in an order of its own, drawn from seed + epoch. Must be the same on all ranks.
  bool shuffle = true;
  uint64_t seed = 0;
  // When the samples do not divide by the ranks: false repeats some from the epoch's beginning until they do,
  // true leaves some out.
  bool drop_last = false;
  // For evaluation: every sample exactly once. The counts of two ranks then differ by up to one, so weigh
  // metrics by count. Not together with drop_last.
  bool exact = false;
};

// How far an epoch has come. Holds nothing of one rank or of the number of ranks, so any world can go on from
// it.
struct SamplerState {
  int64_t epoch = 0;
  // By all ranks together, from the beginning of the epoch's order; dataset_size once the epoch is done.
  uint64_t consumed = 0;
  uint64_t dataset_size = 0;
  uint64_t seed = 0;
  bool shuffle = true;

  bool operator==(const SamplerState&) const = default;
};

// A copy is the same sampler, and moving copies: what is called on the user's object acts on the data
// loader's, from its next reset() on. So one sampler serves one loader at a time. All calls may come from any
// thread; LibTorch's loaders make them in the thread that iterates, its ChunkDataset in workers of its own.
//
// lockstep::make_data_loader (data_loader.h) makes a loader that counts for its sampler, also with workers.
//
// Memory: nothing for an order that is not shuffled. A shuffled one takes 4 bytes a sample while reset() or
// indices() builds it, and as much for each sample of this rank as long as it is iterated: with 1e8 samples
// on N ranks 400 MB for some seconds, and 400/N MB. (From 2^31 samples on it is 8 bytes while built, above
// 2^32 also after.) The program's random generator is left alone.
//
// Errors are UsageErrors and change nothing.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // Takes the group's rank and size, and does not keep it.
  explicit DistributedSampler(size_t dataset_size, std::shared_ptr<ProcessGroup> group = default_group(),
                              SamplerOptions options = {});
  DistributedSampler(size_t dataset_size, int num_replicas, int rank, SamplerOptions options = {});
  DistributedSampler(const DistributedSampler&) = default;
  DistributedSampler& operator=(const DistributedSampler&) = default;

  // Another epoch than the present one begins at its beginning. The present one stays where it is, so that
  // the usual loop, which calls this right after a restore(), does not undo it. Takes effect at the next
  // reset(), or indices(). An iteration under way goes on to hand out the old epoch, but epoch(), position()
  // and state() speak of the new one at once.
  void set_epoch(int64_t epoch);
  int64_t epoch() const;

  // This rank's samples in a whole epoch: Python's len(sampler).
  size_t size() const;

  // For use by hand: this rank's samples of the epoch from position() on. Counts nothing; advance() does.
  std::vector<size_t> indices() const;

  // Begins an iteration: of an epoch set, restored or advanced since the last one where that points to,
  // otherwise of the same epoch from its beginning, as Python does when set_epoch is forgotten (with a
  // warning if the order was meant to be shuffled). A new size (ChunkDataset passes one) replaces the
  // dataset's, unless a restored position depends on it.
  void reset(torch::optional<size_t> new_size = {}) override;
  // Up to batch_size samples; none when the epoch is done.
  torch::optional<std::vector<size_t>> next(size_t batch_size) override;

  // How many samples this rank is done with since it began or restored the epoch: those that a
  // lockstep::DataLoader has handed to the loop. With a loader of LibTorch's, those that the loader was
  // handed, until advance() is called: with workers that is ahead of the training, and only the user knows
  // which have been trained on.
  int64_t position() const;
  // This rank has trained on so many more samples; call it after each step, with the size of the batch. Once
  // called within an iteration, it alone counts, in later epochs too. Before an iteration, it skips. More
  // than this rank was given is an error, and so is a call within the iteration of a lockstep::DataLoader,
  // which counts by itself.
  void advance(size_t samples);

  // The same on all ranks that have done equally many steps.
  SamplerState state() const;
  // The next reset() or indices() goes on from there. With as many ranks as before, as if never interrupted.
  // With another number, what is left of the epoch's order is dealt anew: nothing is lost, and nothing is
  // repeated but what fills the last round (and with drop_last that is cut, with exact it is left uneven). If
  // nothing is left, that iteration is empty. The state must be of the same dataset_size and shuffle, and if
  // shuffled, of the same seed.
  void restore(const SamplerState& state);
  // Throws what restore() would, and changes nothing.
  void check(const SamplerState& state) const;

  // state() and restore() for LibTorch's archives. An archive without one is a SnapshotError.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  friend class detail::PassSampler;
  friend void data::warn_if_uncounted(const DistributedSampler& sampler);

  // For lockstep::DataLoader. in_order: batches reach the loop in the order of the samples.
  void begin_pass(bool in_order);
  void count(size_t samples);
  void end_pass();

  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared by all copies
};

}  // namespace lockstep
