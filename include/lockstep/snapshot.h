// Snapshots of a training run: what is needed to go on after a crash exactly where it stood.
//
// A snapshot holds models, optimizers (state and options, by parameter name), the counters of learning-rate
// schedulers, samplers, every rank's random generator, the epoch and step, and values of the user's own. It
// is one safetensors file, written by rank 0, with a checksum over every byte; it appears under its name only
// when it is whole and on the disk. Not in it: what communication hooks remember.
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
class ReduceLROnPlateauScheduler;  // from LibTorch 2 on
}

namespace lockstep {

// Where a run stands: the epoch and step to begin with, and what else the program wants back.
struct Position {
  int64_t epoch = 0;
  int64_t step = 0;
  std::map<std::string, std::variant<int64_t, double, std::string>> values = {};
};

struct SnapshotOptions {
  int keep = 3;  // the newest so many; 0 keeps all
  // save() returns when the state is copied in memory; writing goes on in the background. At most one is
  // under way; how it went is known at the next save(), at wait(), or in the log.
  bool async = false;
  // Takes no lock: for programs that look at a run that another one may be writing.
  bool read_only = false;
};

struct SnapshotInfo {
  std::filesystem::path path;
  int64_t sequence = 0;  // counts the snapshots of the directory
  Position position;
  int world_size = 0;  // of the job that wrote it
  uint64_t bytes = 0;
  std::chrono::system_clock::time_point saved;
};

// Whatever sets learning rates and can be in a snapshot: lockstep's schedulers and LibTorch's. Of those that
// are derived from LRScheduler, as StepLR is and classes of your own may be, the count of steps is held.
using AnyScheduler = std::variant<Scheduler*, ReduceLROnPlateau*, torch::optim::LRScheduler*,
                                  torch::optim::ReduceLROnPlateauScheduler*>;
template <class Type>
concept SnapshotScheduler = std::constructible_from<AnyScheduler, Type*>;

// One thing that a snapshot holds, under a name; for programs with several models or optimizers:
//
//   snapshots.save({{"generator", g}, {"critic", c}, {"adam_g", adam_g}, {"adam_c", adam_c}}, {.epoch = 3});
//
// A model named "" gives its tensors the module's names, any other prefixes them: "generator.fc1.weight".
// Of a scheduler, its counters are held, and not what it does at which step: that is the program's.
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

// The snapshots of one run, in one directory. All ranks of the group make one and make the same calls; only
// rank 0 touches the directory, so the others need not see it.
//
// Models are DistributedDataParallel, shared_ptr<Module> or module holders. Errors are the same on all ranks.
// Where save() and resume() find that the options of an optimizer, or the counters of a scheduler, differ
// between the ranks, they warn, naming the option.
class Snapshots {
 public:
  // Makes the directory if need be. SnapshotError when another job writes to it.
  explicit Snapshots(std::filesystem::path directory, std::shared_ptr<ProcessGroup> group = default_group(),
                     SnapshotOptions options = {});
  ~Snapshots();  // waits for what is being written
  Snapshots(Snapshots&&) noexcept;
  Snapshots& operator=(Snapshots&&) noexcept;

  // When it returns, the snapshot is on the disk (unless options.async). SnapshotError if it cannot be
  // written, or if the directory is no longer the one that was locked. A sampler is saved with its position
  // if position.epoch is the epoch it is in, and at the beginning of position.epoch otherwise.
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

  // Takes the newest snapshot that is whole; damaged ones are passed over, with a warning. Zeros when there
  // is none. Changes nothing when it throws: SnapshotError if all are damaged, if the newest cannot be read
  // for another reason (it may be whole), or if it is one of another model. Parts of the snapshot that are
  // not asked for are left out. Each rank's random generator goes on where it stood; ranks that the run did
  // not have before keep theirs.
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

  // Waits for what is being written, and throws if it failed. All ranks.
  void wait();

  // What this process sees of the directory, oldest first. Only the headers are read; damaged ones are left
  // out. SnapshotError if one cannot be read for another reason.
  std::vector<SnapshotInfo> list() const;
  std::optional<SnapshotInfo> latest() const;

  struct Impl;  // src/snapshot/snapshots.cc

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
