// Snapshots in a training loop: saved, resumed, after kills, with other world sizes, and with several ranks.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <set>

#include <ATen/CPUGeneratorImpl.h>

#include <lockstep/sampler.h>
#include <lockstep/snapshot.h>

#include "ddp/training.h"
#include "snapshot/contents.h"
#include "snapshot/file_reader.h"
#include "snapshot/file_writer.h"
#include "snapshot/scratch.h"
#include "support/message_of.h"

namespace lockstep::testing {

namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Has dropout and batch norm, so that the random state and the buffers matter.
struct Noisy : torch::nn::Module {
  explicit Noisy(int64_t hidden = 16)
      : first(register_module("first", torch::nn::Linear(8, hidden))),
        norm(register_module("norm", torch::nn::BatchNorm1d(hidden))),
        second(register_module("second", torch::nn::Linear(hidden, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    return second(torch::dropout(torch::relu(norm(first(x))), 0.3, is_training()));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};

constexpr size_t kSamples = 96;
constexpr size_t kBatch = 4;

// A user's training run: epochs over a sampler, with a snapshot after each step.
struct Training {
  explicit Training(const std::shared_ptr<ProcessGroup>& with, const fs::path& directory,
                    SnapshotOptions options = {})
      : group(with),
        model((torch::manual_seed(3), std::make_shared<Noisy>())),
        ddp(model, group),
        optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-2).weight_decay(1e-3)),
        sampler(kSamples, group, {.seed = 5}),
        snapshots(directory, group, options) {
    torch::manual_seed(100 + group->rank());
  }

  // Makes one step and returns its loss.
  double step(const std::vector<size_t>& indices) {
    const auto rows = torch::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    const auto batch = global_batch(kSamples, 0).index_select(0, rows);
    optimizer.zero_grad();
    auto loss = loss_of(ddp(batch), batch);
    loss.backward();
    optimizer.step();
    return loss.item<double>();
  }

  // Trains until the run has made `steps` steps in total, saving after each.
  std::vector<double> train_until(int64_t steps, const std::function<void(int64_t)>& after_save = {}) {
    std::vector<double> losses;
    auto at = snapshots.resume(ddp, optimizer, sampler);
    for (auto epoch = at.epoch; at.step < steps; ++epoch) {
      sampler.set_epoch(epoch);
      sampler.reset();
      while (at.step < steps) {
        const auto indices = sampler.next(kBatch);
        if (!indices) break;
        losses.push_back(step(*indices));
        ++at.step;
        snapshots.save(ddp, optimizer, sampler, {.epoch = epoch, .step = at.step});
        if (after_save) after_save(at.step);
      }
    }
    return losses;
  }

  Tensors state() const {
    Tensors all;
    for (const auto& tensor : model->parameters()) all.push_back(tensor.detach().clone());
    for (const auto& tensor : model->buffers()) all.push_back(tensor.detach().clone());
    return all;
  }

  std::shared_ptr<ProcessGroup> group;
  std::shared_ptr<Noisy> model;
  DistributedDataParallel<Noisy> ddp;
  torch::optim::Adam optimizer;
  DistributedSampler sampler;
  Snapshots snapshots;
};

void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << "tensor " << i;
}

std::shared_ptr<ProcessGroup> lone_group() {
  const auto group = init_process_group({.rank = 0, .world_size = 1});
  destroy_process_group();  // destroys the default group; this one remains
  return group;
}

void write_text(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

void flip_byte(const fs::path& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const auto byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(offset);
  file.put(byte);
}

class SnapshotWorlds : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  const std::string& backend() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Worlds, SnapshotWorlds,
                         ::testing::Values(std::tuple{"shm", 1}, std::tuple{"shm", 2}, std::tuple{"gloo", 2},
                                           std::tuple{"shm", 3}),
                         [](const auto& at) {
                           return std::get<0>(at.param) + std::to_string(std::get<1>(at.param));
                         });

// A run in which all ranks are killed must have the losses, parameters and buffers of an uninterrupted one,
// bit for bit.
TEST_P(SnapshotWorlds, ResumeAfterKillIsBitwise) {
  const ScratchFolder scratch;
  const auto killed = start_ranks(world(), [&](int) {
    Training run(init_process_group({.backend = backend()}), scratch / "run");
    run.train_until(20, [&](int64_t step) {
      if (step == 11) raise(SIGKILL);
    });
  });
  for (const auto& outcome : killed) EXPECT_NE(outcome.exit_status, 0) << outcome.describe();
  run_ranks(world(), backend(), [&](ProcessGroup&) {
    Training whole(default_group(), scratch / "whole");
    const auto losses = whole.train_until(20);
    Training resumed(default_group(), scratch / "run");
    const auto rest = resumed.train_until(20);
    ASSERT_EQ(losses.size(), 20U);
    // The ranks were killed either before or after the snapshot of step 11 was written.
    ASSERT_GE(rest.size(), 9U);
    ASSERT_LE(rest.size(), 10U);
    for (size_t i = 0; i < rest.size(); ++i) EXPECT_EQ(rest[i], losses[20 - rest.size() + i]) << "step " << i;
    expect_same(resumed.state(), whole.state());
  });
}

TEST_P(SnapshotWorlds, AsynchronousSavesHoldTheMomentOfTheCall) {
  const ScratchFolder scratch;
  run_ranks(world(), backend(), [&](ProcessGroup& group) {
    Training run(default_group(), scratch / "run", {.async = true});
    run.train_until(3);
    auto at_three = run.state();
    // Until the next forward, each rank has running statistics of its own. A snapshot stores those of rank 0.
    for (auto& tensor : at_three) group.broadcast(tensor, 0);
    run.snapshots.save(run.ddp, run.optimizer, run.sampler, {.epoch = 0, .step = 3});
    run.step({1, 2, 3, 4});
    run.snapshots.wait();
    EXPECT_EQ(run.snapshots.resume(run.ddp, run.optimizer, run.sampler).step, 3);
    expect_same(run.state(), at_three);
  });
}

TEST_P(SnapshotWorlds, AnEmptyDirectoryGivesZerosAndChangesNothing) {
  const ScratchFolder scratch;
  run_ranks(world(), backend(), [&](ProcessGroup&) {
    Training run(default_group(), scratch / "not/there/yet");
    const auto before = run.state();
    const auto at = run.snapshots.resume(run.ddp, run.optimizer, run.sampler);
    EXPECT_EQ(at.epoch, 0);
    EXPECT_EQ(at.step, 0);
    EXPECT_TRUE(at.values.empty());
    EXPECT_FALSE(run.snapshots.latest());
    expect_same(run.state(), before);
  });
}

// The rest of the epoch is distributed to the new number of ranks.
TEST(Snapshots, ResumeAtAnotherWorldSizeLosesAndRepeatsNoSample) {
  const ScratchFolder scratch;
  const auto record = [](const fs::path& path, const std::vector<size_t>& indices) {
    std::ofstream file(path, std::ios::app);
    for (const auto index : indices) file << index << "\n";
  };
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    Training run(default_group(), scratch / "run");
    run.sampler.reset();
    for (int i = 0; i < 5; ++i) {
      const auto indices = *run.sampler.next(kBatch);
      run.step(indices);
      record(scratch / ("two" + std::to_string(group.rank())), indices);
    }
    run.snapshots.save(run.ddp, run.optimizer, run.sampler, {.epoch = 0, .step = 5});
    if (group.rank() == 0) {
      const auto latest = run.snapshots.latest();
      ASSERT_TRUE(latest);
      EXPECT_EQ(latest->world_size, 2);
    }
  });
  run_ranks(3, "shm", [&](ProcessGroup& group) {
    Training run(default_group(), scratch / "run");
    EXPECT_EQ(run.snapshots.resume(run.ddp, run.optimizer, run.sampler).step, 5);
    expect_same_on_all_ranks(group, run.state());
    run.sampler.set_epoch(0);
    run.sampler.reset();
    while (const auto indices = run.sampler.next(kBatch)) {
      run.step(*indices);
      record(scratch / ("three" + std::to_string(group.rank())), *indices);
    }
  });
  std::multiset<size_t> seen;
  for (const char* name : {"two0", "two1", "three0", "three1", "three2"}) {
    std::ifstream file(scratch / name);
    for (size_t index = 0; file >> index;) seen.insert(index);
  }
  for (size_t i = 0; i < kSamples; ++i) EXPECT_GE(seen.count(i), 1U) << i;
  EXPECT_LE(seen.size(), kSamples + 2) << "only the padding of the last round repeats samples";
}

TEST(Snapshots, AFailedWriteIsTheSameErrorOnAllRanks) {
  const ScratchFolder scratch;
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    for (const bool async : {false, true}) {
      const auto directory = scratch / (async ? "async" : "sync");
      Training run(default_group(), directory, {.async = async});
      run.train_until(2);
      run.snapshots.wait();
      group.barrier();
      // The directory is missing during the next write, and is restored afterwards.
      if (group.rank() == 0) fs::rename(directory, scratch / "elsewhere");
      group.barrier();
      EXPECT_THAT(message_of<SnapshotError>([&] {
                    run.snapshots.save(run.ddp, {.step = 3});
                    run.snapshots.wait();
                  }),
                  AllOf(HasSubstr(directory.string()), HasSubstr("No such file or directory")));
      if (group.rank() == 0) fs::rename(scratch / "elsewhere", directory);
      // The group and the earlier snapshots can still be used.
      auto ones = at::ones({1});
      group.all_reduce(ones);
      EXPECT_EQ(ones.item<float>(), 2);
      EXPECT_EQ(run.snapshots.resume(run.ddp, run.optimizer, run.sampler).step, 2);
    }
  });
}

TEST(Snapshots, DamagedOnesArePassedOver) {
  const ScratchFolder scratch;
  Training run(lone_group(), scratch / "run", {.keep = 10});
  std::vector<Tensors> states;
  run.train_until(4, [&](int64_t) { states.push_back(run.state()); });
  const auto files = run.snapshots.list();
  ASSERT_EQ(files.size(), 4U);
  flip_byte(files[3].path, static_cast<int64_t>(files[3].bytes) - 100);
  fs::resize_file(files[2].path, files[2].bytes / 2);
  write_text(scratch / "run/snapshot-00000009.safetensors", "");
  write_text(scratch / "run/snapshot-00000008.safetensors", "something else altogether, and long enough");
  EXPECT_EQ(run.snapshots.resume(run.ddp, run.optimizer, run.sampler).step, 2);
  expect_same(run.state(), states[1]);
  // The next snapshot gets a number above all of them.
  run.snapshots.save(run.ddp, run.optimizer, run.sampler, {.step = 7});
  EXPECT_EQ(run.snapshots.latest()->sequence, 10);
  EXPECT_EQ(run.snapshots.resume(run.ddp, run.optimizer, run.sampler).step, 7);
}

TEST(Snapshots, IfAllAreDamagedItIsAnErrorAndNotANewBeginning) {
  const ScratchFolder scratch;
  Training run(lone_group(), scratch / "run");
  run.train_until(1);
  flip_byte(run.snapshots.latest()->path, 2000);
  const auto before = run.state();
  EXPECT_THAT(message_of<SnapshotError>([&] { run.snapshots.resume(run.ddp, run.optimizer, run.sampler); }),
              AllOf(HasSubstr("none of the 1 snapshots"), HasSubstr("checksum"), HasSubstr("hint:")));
  expect_same(run.state(), before);
}

TEST(Snapshots, AnotherModelIsNamedAndNothingIsChanged) {
  const ScratchFolder scratch;
  Training run(lone_group(), scratch / "run");
  run.train_until(2);
  const auto other = std::make_shared<Noisy>(24);
  torch::optim::Adam optimizer(other->parameters(), 1e-2);
  const auto before = other->first->weight.detach().clone();
  EXPECT_THAT(message_of<SnapshotError>([&] { run.snapshots.resume(other, optimizer); }),
              AllOf(HasSubstr("another model"),
                    HasSubstr("'first.weight' is Float [16, 8] in the snapshot and Float [24, 8] here")));
  EXPECT_TRUE(same_bits(other->first->weight, before));
  EXPECT_THAT(message_of<SnapshotError>([&] { run.snapshots.resume(make_net()); }),
              AllOf(HasSubstr("'third.weight' is not in the snapshot"),
                    HasSubstr("'norm.bias' is not in this model")));
  // The model matches, but the optimizer does not: the model must not change.
  Training fresh(lone_group(), scratch / "fresh");
  torch::optim::SGD sgd(fresh.ddp.parameters(), 0.1);
  const auto weights = fresh.state();
  EXPECT_THAT(message_of<SnapshotError>([&] { run.snapshots.resume(fresh.ddp, sgd); }),
              AllOf(HasSubstr("Adam"), HasSubstr("SGD")));
  expect_same(fresh.state(), weights);
}

TEST(Snapshots, ASnapshotOfANewerFormatIsNotPassedOver) {
  const ScratchFolder scratch;
  Training run(lone_group(), scratch / "run");
  run.train_until(2);
  put_bytes(scratch / "run/snapshot-00000005.safetensors",
            with_version(bytes_in(run.snapshots.latest()->path), "7"));
  EXPECT_THAT(message_of<SnapshotError>([&] { run.snapshots.resume(run.ddp, run.optimizer, run.sampler); }),
              AllOf(HasSubstr("newer"), HasSubstr("7")));
}

TEST(Snapshots, WhatCannotBeReadStopsAllRanksAndChangesNothing) {
  const ScratchFolder scratch;
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    Training run(default_group(), scratch / "run");
    run.train_until(2);
    run.step({1, 2, 3, 4});
    // A link to itself is an error of the system, not a damaged file.
    const auto path = scratch / "run/snapshot-00000003.safetensors";
    if (group.rank() == 0) fs::create_symlink(path.filename(), path);
    const auto before = run.state();
    EXPECT_THAT(message_of<SnapshotError>([&] { run.snapshots.resume(run.ddp, run.optimizer, run.sampler); }),
                AllOf(HasSubstr("cannot resume"), HasSubstr("rank 0 of 2"), HasSubstr(path.string()),
                      HasSubstr("errno 40"), HasSubstr("hint: ")));
    expect_same(run.state(), before);
    group.barrier();
    if (group.rank() == 0) fs::remove(path);
    EXPECT_EQ(run.snapshots.resume(run.ddp, run.optimizer, run.sampler).step, 2);
  });
}

// Everything is checked on every rank before the first value is written.
TEST(Snapshots, ARandomStateThatDoesNotFitIsRefusedBeforeAnythingChanges) {
  const ScratchFolder scratch;
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    Training run(default_group(), scratch / "run");
    run.train_until(2);
    if (group.rank() == 0) {
      auto document = snapshot::read_file(run.snapshots.latest()->path);
      for (auto& [name, tensor, lasting] : document.tensors) {
        if (name == "generators/1") tensor = tensor.slice(0, 0, 100).clone();
      }
      snapshot::write_file(document, scratch / "run/snapshot-00000003.safetensors");
    }
    group.barrier();
    run.step({1, 2, 3, 4});
    const auto before = run.state();
    const auto random = at::detail::getDefaultCPUGenerator().get_state();
    EXPECT_THAT(message_of<SnapshotError>([&] { run.snapshots.resume(run.ddp, run.optimizer, run.sampler); }),
                AllOf(HasSubstr("random state of rank 1"), HasSubstr("Byte [100]"), HasSubstr("hint: ")));
    expect_same(run.state(), before);
    EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), random));
  });
}

TEST(Snapshots, AnExpandedParameterIsRefusedBeforeAnythingChanges) {
  struct Pair : torch::nn::Module {
    explicit Pair(const at::Tensor& first, const at::Tensor& second) {
      register_buffer("first", first);
      register_buffer("second", second);
    }
  };
  const ScratchFolder scratch;
  Snapshots snapshots(scratch / "run", lone_group());
  snapshots.save(std::make_shared<Pair>(at::ones({3}), at::ones({3})));
  const auto first = at::zeros({3});
  const auto other = std::make_shared<Pair>(first, at::zeros({1}).expand({3}));
  EXPECT_THAT(message_of<SnapshotError>([&] { snapshots.resume(other); }), HasSubstr("'second'"));
  EXPECT_EQ(first.sum().item<float>(), 0);
}

// Rank 0 copies the state and starts the thread after the ranks have agreed. Its errors must still reach all
// ranks.
TEST(Snapshots, ACopyThatFailsIsTheSameErrorOnAllRanks) {
  struct Hollow : torch::nn::Module {
    Hollow() { register_buffer("hollow", at::empty({2}, at::kMeta)); }
  };
  const ScratchFolder scratch;
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    Snapshots snapshots(scratch / "run", default_group(), {.async = true});
    const auto model = std::make_shared<Hollow>();
    EXPECT_THAT(message_of<Error>([&] {
                  snapshots.save(model);
                  snapshots.wait();
                }),
                HasSubstr("meta"));
    group.barrier();
    snapshots.save(make_net());
    snapshots.wait();
    if (group.rank() == 0) {
      EXPECT_EQ(snapshots.list().size(), 1U);
    }
  });
}

TEST(Snapshots, ADirectoryMadeAnewIsNotWrittenTo) {
  const ScratchFolder scratch;
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    Training run(default_group(), scratch / "run");
    run.train_until(1);
    group.barrier();
    if (group.rank() == 0) {
      fs::rename(scratch / "run", scratch / "elsewhere");
      fs::create_directory(scratch / "run");
    }
    group.barrier();
    EXPECT_THAT(message_of<SnapshotError>([&] { run.snapshots.save(run.ddp, {.step = 3}); }),
                AllOf(HasSubstr((scratch / "run").string()), HasSubstr("recreated")));
    EXPECT_TRUE(fs::is_empty(scratch / "run"));
  });
}

TEST(Snapshots, ARemovedLockAdmitsNoSecondJob) {
  const ScratchFolder scratch;
  Training run(lone_group(), scratch / "run");
  run.train_until(1);
  fs::remove(scratch / "run/.lock");
  EXPECT_THROW(Snapshots(scratch / "run", lone_group()), SnapshotError);
  run.snapshots.save(run.ddp, {.step = 2});
  EXPECT_TRUE(fs::exists(scratch / "run/.lock"));
  EXPECT_THROW(Snapshots(scratch / "run", lone_group()), SnapshotError);
}

TEST(Snapshots, KeepsTheNewestAndNoMore) {
  const ScratchFolder scratch;
  Training run(lone_group(), scratch / "run", {.keep = 2});
  run.train_until(5);
  const auto files = run.snapshots.list();
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].position.step, 4);
  EXPECT_EQ(files[1].position.step, 5);
}

TEST(Snapshots, TwoJobsOnOneDirectory) {
  const ScratchFolder scratch;
  const Snapshots first(scratch / "run", lone_group());
  EXPECT_THAT(message_of<SnapshotError>([&] { const Snapshots second(scratch / "run", lone_group()); }),
              AllOf(HasSubstr(std::to_string(getpid())), HasSubstr("hint:")));
  const Snapshots reader(scratch / "run", lone_group(), {.read_only = true});
  EXPECT_TRUE(reader.list().empty());
}

TEST(Snapshots, ReadersTakeNoLockAndDoNotWrite) {
  const ScratchFolder scratch;
  Training run(lone_group(), scratch / "run");
  run.train_until(1);
  Snapshots reader(scratch / "run", lone_group(), {.read_only = true});
  const auto twin = std::make_shared<Noisy>();
  EXPECT_EQ(reader.resume(twin).step, 1);
  EXPECT_TRUE(same_bits(twin->first->weight, run.model->first->weight));
  EXPECT_THAT(message_of<UsageError>([&] { reader.save(twin); }), HasSubstr("read-only"));
}

TEST(Snapshots, TheUsersValuesComeBackExactly) {
  const ScratchFolder scratch;
  Training run(lone_group(), scratch / "run");
  const Position position{.epoch = 2,
                          .step = 77,
                          .values = {{"best", 0.1},
                                     {"whole", 1.0},
                                     {"count", int64_t{1} << 60},
                                     {"nothing", std::nan("")},
                                     {"bound", -INFINITY},
                                     {"zero", -0.0},
                                     {"name", "größer"},
                                     {"empty", ""}}};
  run.snapshots.save(run.ddp, position);
  const auto back = run.snapshots.resume(run.ddp);
  EXPECT_EQ(back.epoch, 2);
  EXPECT_EQ(back.step, 77);
  ASSERT_EQ(back.values.size(), position.values.size());
  EXPECT_TRUE(std::isnan(std::get<double>(back.values.at("nothing"))));
  EXPECT_TRUE(std::signbit(std::get<double>(back.values.at("zero"))));
  for (const char* name : {"best", "whole", "count", "bound", "name", "empty"}) {
    EXPECT_EQ(back.values.at(name), position.values.at(name)) << name;
  }
  EXPECT_THAT(message_of<UsageError>([&] {
                run.snapshots.save(run.ddp, {.values = {{"bytes", "\xff\xfe"}}});
              }),
              HasSubstr("UTF-8"));
}

TEST(Snapshots, SeveralModelsAndOptimizers) {
  const ScratchFolder scratch;
  const auto generator = make_net(1);
  const auto critic = make_net(2);
  torch::optim::Adam adam(generator->parameters(), 1e-2);
  torch::optim::SGD sgd(critic->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto train = [&] {
    for (const auto& net : {generator, critic}) {
      net->zero_grad();
      loss_of(net->forward(global_batch(4, 0)), global_batch(4, 0)).backward();
    }
    adam.step();
    sgd.step();
    return Tensors{generator->second->weight.detach().clone(), critic->second->weight.detach().clone()};
  };
  Snapshots snapshots(scratch / "run", lone_group());
  const std::vector<SnapshotPart> parts{
      {"generator", generator}, {"critic", critic}, {"adam", adam}, {"sgd", sgd}};
  train();
  snapshots.save(parts, {.step = 1});
  const auto second = train();
  train();
  EXPECT_EQ(snapshots.resume(parts).step, 1);
  expect_same(train(), second);
  // Only one of the models.
  EXPECT_EQ(snapshots.resume({{"critic", critic}}).step, 1);
  EXPECT_TRUE(same_bits(generator->second->weight, second[0]));
  EXPECT_FALSE(same_bits(critic->second->weight, second[1]));
  EXPECT_THAT(message_of<SnapshotError>([&] { snapshots.resume(generator); }),
              AllOf(HasSubstr("no part ''"), HasSubstr("'generator'")));
  // The names as `lockstep snapshot export` requests them.
  const auto document = snapshot::read_file(snapshots.latest()->path);
  EXPECT_EQ(snapshot::model_in(document, "critic").size(), 6U);
  EXPECT_THAT(message_of<SnapshotError>([&] { snapshot::model_in(document, "nope"); }),
              AllOf(HasSubstr("holds no model \"nope\": it holds \"critic\", \"generator\""),
                    HasSubstr("hint: --model critic, or --model generator")));
  EXPECT_THAT(message_of<SnapshotError>([&] { snapshot::model_in(document, ""); }),
              AllOf(HasSubstr("all models of the snapshot have names"), HasSubstr("--model critic")));
  EXPECT_THAT(message_of<UsageError>([&] {
                snapshots.save({{"a", generator}, {"a", critic}});
              }),
              HasSubstr("two tensors"));
}

TEST(Snapshots, AModuleWithTwoNamesIsStoredOnce) {
  struct Tied : torch::nn::Module {
    explicit Tied(uint64_t seed) {
      torch::manual_seed(seed);
      const torch::nn::Linear shared(8, 8);
      here = register_module("here", shared);
      register_module("there", shared);
    }
    torch::nn::Linear here{nullptr};
  };
  const ScratchFolder scratch;
  Snapshots snapshots(scratch / "run", lone_group());
  const auto model = std::make_shared<Tied>(1);
  torch::optim::Adam optimizer({model->here->weight, model->here->bias}, 1e-2);
  model->here->forward(global_batch(4, 0)).sum().backward();
  optimizer.step();
  snapshots.save(model, optimizer);
  // Weight, bias, two moments for each, and the random state.
  EXPECT_LT(snapshots.latest()->bytes, 3 * (64 + 8) * 4 + 5056 + 4096);
  const auto twin = std::make_shared<Tied>(2);
  torch::optim::Adam other({twin->here->weight, twin->here->bias}, 1e-2);
  snapshots.resume(twin, other);
  EXPECT_TRUE(same_bits(twin->here->weight, model->here->weight));
}

TEST(Snapshots, BadOptionsAreRefused) {
  const ScratchFolder scratch;
  EXPECT_THAT(message_of<UsageError>([&] { Snapshots(scratch / "run", nullptr); }),
              HasSubstr("no process group"));
  EXPECT_THAT(message_of<UsageError>([&] { Snapshots(scratch / "run", lone_group(), {.keep = -1}); }),
              HasSubstr("keep is -1"));
  write_text(scratch / "file", "in the way");
  EXPECT_THAT(message_of<SnapshotError>([&] { Snapshots(scratch / "file", lone_group()); }),
              HasSubstr("file"));
}

}  // namespace
}  // namespace lockstep::testing
