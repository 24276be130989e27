// Snapshots of a training run: everything needed to continue exactly where it was interrupted.
//
// A snapshot contains models, optimizers (state and options, by parameter name), the counters of
// learning-rate schedulers, samplers, the state of every rank's CPU random generator, the epoch and step, and
// values of the user's own. It does not contain the state of communication hooks. It is one safetensors file,
// written by rank 0, with a checksum over every byte. The file gets its name only when it is complete and on
// disk.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <lockstep/ddp.h>
#include <lockstep/process_group.h>
#include <lockstep/sampler.h>
#include <lockstep/schedule.h>

namespace torch::optim {
class ReduceLROnPlateauScheduler;  // since LibTorch 2
}

namespace lockstep {

// The position of a run: the epoch and step at which to continue, and further values that the program wants
// back.
struct Position {
  int64_t epoch = 0;
  int64_t step = 0;
  std::map<std::string, std::variant<int64_t, double, std::string>> values = {};
};

struct SnapshotOptions {
  int keep = 3;  // how many of the newest snapshots to keep; 0 keeps all
  // save() returns as soon as the state is copied in memory, and a thread writes the file. At most one write
  // runs at a time. Its error is thrown by the next save() or by wait(), or logged by the destructor.
  bool async = false;
  // Does not lock the directory: for programs that inspect a run while another job writes to it.
  bool read_only = false;
};

struct SnapshotInfo {
  std::filesystem::path path;
  int64_t sequence = 0;  // the number of the snapshot in its directory
  Position position;
  int world_size = 0;  // of the job that wrote it
  uint64_t bytes = 0;
  std::chrono::system_clock::time_point saved;
};

// A learning-rate scheduler that a snapshot can contain: lockstep's or LibTorch's. For classes derived from
// LRScheduler (StepLR, or your own), the snapshot stores the step count.
using AnyScheduler = std::variant<Scheduler*, ReduceLROnPlateau*, torch::optim::LRScheduler*,
                                  torch::optim::ReduceLROnPlateauScheduler*>;
template <class Type>
concept SnapshotScheduler = std::constructible_from<AnyScheduler, Type*>;

// A named part of a snapshot, for programs with several models or optimizers:
//
//   snapshots.save({{"generator", g}, {"critic", c}, {"adam_g", adam_g}, {"adam_c", adam_c}}, {.epoch = 3});
//
// The tensors of a model named "" have the names that the module gives them; any other model name is a
// prefix: "generator.fc1.weight". For a scheduler, the snapshot stores its counters, but not its schedule,
// which the program provides.
class SnapshotPart {
 public:
  SnapshotPart(std::string name, const DdpBase& ddp) : name_(std::move(name)), thing_(ddp.model()) {}
  SnapshotPart(std::string name, torch::optim::Optimizer& optimizer)
      : name_(std::move(name)), thing_(&optimizer) {}
  SnapshotPart(std::string name, DistributedSampler& sampler) : name_(std::move(name)), thing_(&sampler) {}
  template <SnapshotScheduler Any>
  SnapshotPart(std::string name, Any& scheduler) : name_(std::move(name)), thing_(AnyScheduler(&scheduler)) {}
  template <class Module>
  SnapshotPart(std::string name, const std::shared_ptr<Module>& module)
      : name_(std::move(name)), thing_(detail::Viewer<Module>::view(module)) {}
  template <class Holder>
  requires requires { typename Holder::ContainedType; }
  SnapshotPart(std::string name, const Holder& holder) : SnapshotPart(std::move(name), holder.ptr()) {}

  using Thing = std::variant<detail::ModelView, torch::optim::Optimizer*, DistributedSampler*, AnyScheduler>;
  const std::string& name() const { return name_; }
  const Thing& thing() const { return thing_; }

 private:
  std::string name_;
  Thing thing_;
};

// The snapshots of one run, in one directory. All ranks of the group must create this object and make the
// same calls. Only rank 0 accesses the directory, so the other ranks need no shared file system.
//
// A model is a DistributedDataParallel, a shared_ptr<Module> or a module holder. The constructor (unless
// options.read_only), save(), resume() and wait() are collectives: they block until all ranks have called
// them, and an error of one rank is thrown on all ranks. They also throw as every collective does
// (PeerLostError, TimeoutError). save() and resume() log a warning if the options of an optimizer or the
// counters of a scheduler differ between the ranks. Not thread-safe.
class Snapshots {
 public:
  // Creates the directory if necessary and locks it. Throws SnapshotError if another job has locked it.
  explicit Snapshots(std::filesystem::path directory, std::shared_ptr<ProcessGroup> group = default_group(),
                     SnapshotOptions options = {});
  ~Snapshots();  // blocks until a running write has ended; logs its error
  Snapshots(Snapshots&&) noexcept;
  Snapshots& operator=(Snapshots&&) noexcept;

  // Returns when the snapshot is on disk, or with options.async when the state is copied. If position.epoch
  // is the sampler's epoch, the sampler's position is saved; otherwise the start of position.epoch. Throws
  // SnapshotError if the file cannot be written, or if the directory is no longer the one that was locked;
  // UsageError for a part that cannot be saved.
  void save(const std::vector<SnapshotPart>& parts, const Position& position = {});
  template <class Model>
  void save(const Model& model, const Position& position = {}) {
    save(std::vector<SnapshotPart>{{"", model}}, position);
  }
  template <class Model>
  void save(const Model& model, torch::optim::Optimizer& optimizer, const Position& position = {}) {
    save(std::vector<SnapshotPart>{{"", model}, {"optimizer", optimizer}}, position);
  }
  template <class Model>
  void save(const Model& model, torch::optim::Optimizer& optimizer, DistributedSampler& sampler,
            const Position& position = {}) {
    save(std::vector<SnapshotPart>{{"", model}, {"optimizer", optimizer}, {"sampler", sampler}}, position);
  }
  template <class Model, SnapshotScheduler Any>
  void save(const Model& model, torch::optim::Optimizer& optimizer, Any& scheduler,
            const Position& position = {}) {
    save(std::vector<SnapshotPart>{{"", model}, {"optimizer", optimizer}, {"scheduler", scheduler}},
         position);
  }
  template <class Model, SnapshotScheduler Any>
  void save(const Model& model, torch::optim::Optimizer& optimizer, DistributedSampler& sampler,
            Any& scheduler, const Position& position = {}) {
    save(
        std::vector<SnapshotPart>{
            {"", model}, {"optimizer", optimizer}, {"sampler", sampler}, {"scheduler", scheduler}},
        position);
  }

  // Restores the newest intact snapshot and returns its position; skips damaged ones with a warning. Returns
  // a default Position if there are none. Ignores parts of the snapshot that are not in `parts`. Each rank's
  // random generator gets its saved state; ranks that the saved run did not have keep theirs.
  //
  // Throws SnapshotError if all snapshots are damaged, if the newest one cannot be read for another reason
  // (it may be intact), or if it does not match the parts. Nothing has changed then.
  Position resume(const std::vector<SnapshotPart>& parts);
  template <class Model>
  Position resume(const Model& model) {
    return resume(std::vector<SnapshotPart>{{"", model}});
  }
  template <class Model>
  Position resume(const Model& model, torch::optim::Optimizer& optimizer) {
    return resume(std::vector<SnapshotPart>{{"", model}, {"optimizer", optimizer}});
  }
  template <class Model>
  Position resume(const Model& model, torch::optim::Optimizer& optimizer, DistributedSampler& sampler) {
    return resume(std::vector<SnapshotPart>{{"", model}, {"optimizer", optimizer}, {"sampler", sampler}});
  }
  template <class Model, SnapshotScheduler Any>
  Position resume(const Model& model, torch::optim::Optimizer& optimizer, Any& scheduler) {
    return resume(std::vector<SnapshotPart>{{"", model}, {"optimizer", optimizer}, {"scheduler", scheduler}});
  }
  template <class Model, SnapshotScheduler Any>
  Position resume(const Model& model, torch::optim::Optimizer& optimizer, DistributedSampler& sampler,
                  Any& scheduler) {
    return resume(std::vector<SnapshotPart>{
        {"", model}, {"optimizer", optimizer}, {"sampler", sampler}, {"scheduler", scheduler}});
  }

  // Blocks until a running write has ended, and throws if it failed.
  void wait();

  // The snapshots that this process finds in the directory, oldest first. Reads only their headers and skips
  // damaged ones. Throws SnapshotError if one cannot be read for another reason. Neither function
  // communicates.
  std::vector<SnapshotInfo> list() const;
  std::optional<SnapshotInfo> latest() const;

  struct Impl;  // src/snapshot/snapshots.cc

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
