#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include <torch/serialize/archive.h>

#include <lockstep/error.h>
#include <lockstep/sampler.h>

#include "base/error_text.h"
#include "base/log.h"
#include "data/epoch_samples.h"
#include "data/look_ahead.h"
#include "data/shard.h"
#include "data/uncounted.h"

namespace lockstep {

using data::EpochSamples;
using data::LastRound;
using data::LookAhead;
using data::Shard;

namespace {

LastRound last_round(const SamplerOptions& options) {
  if (options.exact) return LastRound::Uneven;
  return options.drop_last ? LastRound::Drop : LastRound::Pad;
}

ProcessGroup& checked(const std::shared_ptr<ProcessGroup>& group) {
  if (!group) {
    throw UsageError(
        base::compose({.what = "DistributedSampler got no process group",
                       .hint = "pass the group that init_process_group returned; new_group returns "
                               "null to ranks that are not members"}));
  }
  return *group;
}

void check_size(size_t dataset_size) {
  if (dataset_size <= static_cast<size_t>(std::numeric_limits<int64_t>::max())) return;
  throw UsageError(base::compose({.what = fmt::format("a dataset cannot have {} samples", dataset_size),
                                  .hint = "a negative number converted to size_t has such a value"}));
}

int64_t read_integer(torch::serialize::InputArchive& archive, const char* key) {
  c10::IValue value;
  if (archive.try_read(key, value) && value.isInt()) return value.toInt();
  throw SnapshotError(
      base::compose({.what = "the archive does not hold the state of a lockstep::DistributedSampler",
                     .evidence = fmt::format("it has no integer \"{}\"", key),
                     .hint = "load an archive that DistributedSampler::save has written"}));
}

}  // namespace

struct DistributedSampler::Impl {
  // What counts as trained on.
  enum class Counting {
    HandedOut,  // everything handed out
    Advance,    // what the user reports with advance()
    Loader,     // what a lockstep::DataLoader reports
  };

  std::mutex mutex;  // guards everything below
  const SamplerOptions options;
  std::weak_ptr<ProcessGroup> group;  // whose ranks these are; the sampler does not keep it alive
  int world;
  int rank;
  uint64_t dataset_size;

  // The current epoch, and the position in its order from which it is distributed.
  int64_t epoch = 0;
  uint64_t start = 0;
  uint64_t advanced = 0;
  Counting counting = Counting::HandedOut;
  bool begun = false;  // `samples` matches epoch and start

  bool pointed = false;  // set_epoch() or restore() was called since the iteration started
  bool ever_pointed = false;

  std::optional<EpochSamples> samples;  // of the current iteration
  uint64_t handed_out = 0;              // in this iteration
  uint64_t counted_batches = 0;         // in this iteration, by a DataLoader
  bool passed = false;                  // a DataLoader has reached the end of this iteration
  bool in_order = true;                 // the DataLoader returns its batches in order
  LookAhead look_ahead;

  bool warned_of_epoch = false;
  bool warned_of_position = false;

  Impl(size_t dataset_size_, int world_, int rank_, const SamplerOptions& options_)
      : options(options_), world(world_), rank(rank_), dataset_size(dataset_size_) {}

  std::string where() const { return fmt::format("rank {}/{}", rank, world); }

  Shard shard_from(uint64_t from) const {
    return {.dataset_size = dataset_size,
            .start = from,
            .world = static_cast<uint64_t>(world),
            .rank = static_cast<uint64_t>(rank),
            .last_round = last_round(options)};
  }

  EpochSamples samples_from(uint64_t from) const {
    // Wraps around for negative sums, as Python's manual_seed does.
    const auto seed = options.seed + static_cast<uint64_t>(epoch);
    return EpochSamples(shard_from(from), options.shuffle ? std::optional(seed) : std::nullopt);
  }

  uint64_t position() const { return begun && counting == Counting::HandedOut ? handed_out : advanced; }
  uint64_t consumed() const { return shard_from(start).consumed(position()); }

  // The group may have got other ranks. They share what is left of an epoch when it is distributed again.
  void follow_group() {
    const auto now = group.lock();
    if (!now) return;
    world = now->world_size();
    rank = now->rank();
  }

  void point_to(int64_t new_epoch, uint64_t new_start) {
    follow_group();
    epoch = new_epoch;
    start = new_start;
    advanced = 0;
    begun = false;
  }

  // The user has chosen an epoch or a position.
  void point() { pointed = ever_pointed = true; }

  void begin(uint64_t from) {
    follow_group();
    samples.reset();  // first, so that two are never in memory at once
    samples = samples_from(from);
    start = from;
    advanced = handed_out = counted_batches = 0;
    begun = true;
    pointed = passed = false;
    look_ahead = {};
  }

  // Warns that a shuffled epoch is repeated because nobody has called set_epoch().
  void warn_of_epoch(std::string_view line) {
    if (!options.shuffle || options.exact || dataset_size < 2 || ever_pointed) return;
    if (std::exchange(warned_of_epoch, true)) return;
    base::log_warn("{}", base::compose({.what = fmt::format("epoch {} is repeated in the same order", epoch),
                                        .where = where(),
                                        .evidence = "set_epoch was not called",
                                        .hint = std::string(line)}));
  }

  template <class Value>
  void must_agree(const char* name, const Value& theirs, const Value& ours) const {
    if (theirs == ours) return;
    throw UsageError(base::compose(
        {.what = "the sampler cannot continue from the state of a different order of samples",
         .where = where(),
         .evidence = fmt::format("{} is {} in the state and {} here", name, theirs, ours),
         .hint =
             fmt::format("make the DistributedSampler with the {} of the interrupted run, or start over with "
                         "set_epoch",
                         name)}));
  }

  void check(const SamplerState& state) const {
    must_agree("dataset_size", state.dataset_size, dataset_size);
    must_agree("shuffle", state.shuffle, options.shuffle);
    if (state.shuffle) must_agree("seed", state.seed, options.seed);
    if (state.consumed > state.dataset_size) {
      throw UsageError(base::compose(
          {.what = "the sampler cannot continue from an invalid state",
           .where = where(),
           .evidence = fmt::format("it counts {} of {} samples as used", state.consumed, state.dataset_size),
           .hint = "restore a state that DistributedSampler::state has returned"}));
    }
  }
};

DistributedSampler::DistributedSampler(size_t dataset_size, std::shared_ptr<ProcessGroup> group,
                                       SamplerOptions options)
    : DistributedSampler(dataset_size, checked(group).world_size(), checked(group).rank(), options) {
  impl_->group = group;
}

DistributedSampler::DistributedSampler(size_t dataset_size, int num_replicas, int rank,
                                       SamplerOptions options) {
  if (num_replicas < 1) {
    throw UsageError(base::compose({.what = fmt::format("DistributedSampler got {} replicas", num_replicas),
                                    .hint = "num_replicas is the number of ranks, at least 1"}));
  }
  if (rank < 0 || rank >= num_replicas) {
    throw UsageError(base::compose(
        {.what = fmt::format("DistributedSampler got rank {} of {} replicas", rank, num_replicas),
         .hint = fmt::format("rank must be between 0 and {}", num_replicas - 1)}));
  }
  if (options.exact && options.drop_last) {
    throw UsageError(
        base::compose({.what = "DistributedSampler got both exact and drop_last",
                       .hint = "exact uses every sample, drop_last leaves some out; choose one"}));
  }
  check_size(dataset_size);
  impl_ = std::make_shared<Impl>(dataset_size, num_replicas, rank, options);
}

void DistributedSampler::set_epoch(int64_t epoch) {
  const std::lock_guard lock(impl_->mutex);
  if (epoch != impl_->epoch) impl_->point_to(epoch, 0);
  impl_->point();
}

int64_t DistributedSampler::epoch() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->epoch;
}

size_t DistributedSampler::size() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->shard_from(0).size();
}

std::vector<size_t> DistributedSampler::indices() const {
  const std::lock_guard lock(impl_->mutex);
  std::optional<EpochSamples> fresh;
  if (!impl_->begun) fresh = impl_->samples_from(impl_->start);
  const auto& samples = fresh ? *fresh : *impl_->samples;
  std::vector<size_t> left;
  left.reserve(samples.size() - impl_->position());
  for (size_t k = impl_->position(); k < samples.size(); ++k) left.push_back(samples[k]);
  return left;
}

void DistributedSampler::reset(torch::optional<size_t> new_size) {
  const std::lock_guard lock(impl_->mutex);
  const uint64_t from = impl_->begun ? 0 : impl_->consumed();
  if (new_size && *new_size != impl_->dataset_size) {
    check_size(*new_size);
    if (from != 0) {
      throw UsageError(base::compose(
          {.what = "the size of the dataset has changed, so the epoch cannot continue at its position",
           .where = impl_->where(),
           .evidence = fmt::format("{} of {} samples are done, and now there are {}", from,
                                   impl_->dataset_size, *new_size),
           .hint = "use the dataset of the interrupted run, or continue with the next epoch (set_epoch)"}));
    }
    impl_->dataset_size = *new_size;
  }
  // ChunkDataset passes a size and starts an iteration for each chunk, so a repetition is normal there.
  if (impl_->begun && !new_size && impl_->handed_out > 0 && impl_->handed_out == impl_->samples->size()) {
    impl_->warn_of_epoch(
        "call sampler.set_epoch(epoch) before each loop to shuffle again; "
        "lockstep::make_data_loader(dataset, batch_size) does so by itself");
  }
  if (impl_->counting == Impl::Counting::Loader) impl_->counting = Impl::Counting::HandedOut;
  impl_->begin(from);
}

torch::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  const std::lock_guard lock(impl_->mutex);
  if (batch_size == 0) {
    throw UsageError(base::compose({.what = "DistributedSampler was asked for a batch of 0 samples",
                                    .where = impl_->where(),
                                    .hint = "give the data loader a batch size of at least 1"}));
  }
  if (!impl_->samples) impl_->begin(impl_->consumed());
  const auto& samples = *impl_->samples;
  auto& k = impl_->handed_out;
  impl_->look_ahead.asked(k < samples.size());
  if (k == samples.size()) return {};
  std::vector<size_t> batch(std::min<size_t>(batch_size, samples.size() - k));
  for (auto& sample : batch) sample = samples[k++];
  return batch;
}

int64_t DistributedSampler::position() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<int64_t>(impl_->position());
}

void DistributedSampler::advance(size_t samples) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->begun && impl_->counting == Impl::Counting::Loader) {
    throw UsageError(base::compose(
        {.what = fmt::format("the sampler cannot advance by {} samples", samples),
         .where = fmt::format("{}, epoch {}", impl_->where(), impl_->epoch),
         .evidence = "its loader was made by lockstep::make_data_loader, which counts by itself",
         .hint = "remove the call to sampler.advance()"}));
  }
  // Only samples that the loader has requested can be trained on. With indices(), nothing is handed out.
  const bool by_loader = impl_->begun && impl_->handed_out > 0;
  const uint64_t most = by_loader ? impl_->handed_out : impl_->shard_from(impl_->start).size();
  if (impl_->advanced > most || samples > most - impl_->advanced) {
    throw UsageError(base::compose(
        {.what = fmt::format("the sampler cannot advance by {} samples", samples),
         .where = fmt::format("{}, epoch {}", impl_->where(), impl_->epoch),
         .evidence = fmt::format("this rank {} {} samples, of which {} are already counted",
                                 by_loader ? "has received" : "gets", most, impl_->advanced),
         .hint = "pass the number of samples in this rank's batch; the last batch may be smaller"}));
  }
  impl_->advanced += samples;
  if (impl_->begun) impl_->counting = Impl::Counting::Advance;
}

void DistributedSampler::begin_pass(bool in_order) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->begun && !impl_->pointed) {
    if (impl_->passed) {
      impl_->point_to(impl_->epoch + 1, 0);
    } else if (impl_->counted_batches > 1) {  // a program may fetch one batch just to inspect it
      impl_->warn_of_epoch("the last loop was left early; call loader->set_epoch(epoch) before each loop");
    }
  }
  impl_->begin(impl_->begun ? 0 : impl_->consumed());
  impl_->counting = Impl::Counting::Loader;
  impl_->in_order = in_order;
}

void DistributedSampler::count(size_t samples) {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->begun) return;  // set_epoch() or restore() has ended this pass
  impl_->advanced += samples;
  ++impl_->counted_batches;
}

void DistributedSampler::end_pass() {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->begun) return;
  impl_->advanced = impl_->samples->size();
  impl_->passed = true;
}

void data::warn_if_uncounted(const DistributedSampler& sampler) {
  auto& impl = *sampler.impl_;
  using Counting = DistributedSampler::Impl::Counting;
  const std::lock_guard lock(impl.mutex);
  if (!impl.begun || impl.warned_of_position) return;
  const auto warn = [&](std::string what, std::string evidence, std::string hint) {
    impl.warned_of_position = true;
    base::log_warn("{}", base::compose({.what = std::move(what),
                                        .where = fmt::format("{}, epoch {}", impl.where(), impl.epoch),
                                        .evidence = std::move(evidence),
                                        .hint = std::move(hint)}));
  };
  if (impl.counting == Counting::HandedOut && impl.look_ahead.ahead()) {
    warn(
        "the sampler's position in this snapshot is ahead of the training, so a resumed run would skip "
        "samples",
        fmt::format("its loader requested several batches before the first was trained on, {} so far",
                    impl.look_ahead.batches()),
        "make the loader with lockstep::make_data_loader(dataset, sampler, options), or call "
        "sampler.advance(batch size) after each step");
  } else if (impl.counting == Counting::Loader && !impl.in_order && impl.advanced > 0 && !impl.passed) {
    warn(
        "a run resumed from this snapshot makes the right number of steps, but may repeat or skip samples of "
        "this epoch",
        "the loader returns its batches out of order (enforce_ordering(false))",
        "remove enforce_ordering(false), or save between epochs");
  }
}

SamplerState DistributedSampler::state() const {
  const std::lock_guard lock(impl_->mutex);
  return {.epoch = impl_->epoch,
          .consumed = impl_->consumed(),
          .dataset_size = impl_->dataset_size,
          .seed = impl_->options.seed,
          .shuffle = impl_->options.shuffle};
}

void DistributedSampler::check(const SamplerState& state) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->check(state);
}

void DistributedSampler::restore(const SamplerState& state) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check(state);
  impl_->point_to(state.epoch, state.consumed);
  impl_->point();
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const auto now = state();
  const auto write = [&](const char* key, auto value) {
    archive.write(key, c10::IValue(static_cast<int64_t>(value)));
  };
  write("epoch", now.epoch);
  write("consumed", now.consumed);
  write("dataset_size", now.dataset_size);
  write("seed", now.seed);
  write("shuffle", now.shuffle);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const auto read = [&](const char* key) { return static_cast<uint64_t>(read_integer(archive, key)); };
  restore({.epoch = read_integer(archive, "epoch"),
           .consumed = read("consumed"),
           .dataset_size = read("dataset_size"),
           .seed = read("seed"),
           .shuffle = read("shuffle") != 0});
}

}  // namespace lockstep
