// Snapshots in the middle of an epoch, with a data loader whose workers load samples ahead of the training.
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <set>

#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>

#include <lockstep/data_loader.h>
#include <lockstep/snapshot.h>

#include "ddp/training.h"
#include "snapshot/scratch.h"

namespace lockstep::testing {

namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kSize = 240;
constexpr size_t kRankBatch = 4;

struct Row {
  size_t index;
  at::Tensor values;
};

struct RowSet : torch::data::datasets::Dataset<RowSet, Row> {
  Row get(size_t index) override { return {index, rows[static_cast<int64_t>(index)]}; }
  torch::optional<size_t> size() const override { return kSize; }
  at::Tensor rows = global_batch(kSize, 0);
};

// A model, an optimizer and a loader as in a user's program. Records the samples of each step in a file.
template <class Loader>
struct LoaderRun {
  LoaderRun(const fs::path& directory, std::unique_ptr<Loader> with)
      : ddp(make_net()), optimizer(ddp.parameters(), 1e-2), loader(std::move(with)), snapshots(directory) {}

  int64_t steps_until(int64_t last, const fs::path& notes, const std::function<void(int64_t)>& after_step) {
    int64_t steps = 0;
    std::ofstream file(notes, std::ios::app);
    for (auto& batch : *loader) {
      std::vector<at::Tensor> rows;
      for (const auto& [index, values] : batch) {
        file << index << "\n";
        rows.push_back(values);
      }
      optimizer.zero_grad();
      const auto input = at::stack(rows);
      loss_of(ddp(input), input).backward();
      optimizer.step();
      after_step(++steps);
      if (steps == last) break;
    }
    ddp.verify_replicas();
    return steps;
  }

  DistributedDataParallel<Net> ddp;
  torch::optim::SGD optimizer;
  std::unique_ptr<Loader> loader;
  Snapshots snapshots;
};

template <class Loader>
LoaderRun(fs::path, std::unique_ptr<Loader>) -> LoaderRun<Loader>;

std::multiset<size_t> noted(const std::vector<fs::path>& files) {
  std::multiset<size_t> seen;
  for (const auto& path : files) {
    std::ifstream file(path);
    for (size_t index = 0; file >> index;) seen.insert(index);
  }
  return seen;
}

std::multiset<size_t> each_once() {
  std::multiset<size_t> all;
  for (size_t i = 0; i < kSize; ++i) all.insert(i);
  return all;
}

torch::data::DataLoaderOptions with_workers() {
  return torch::data::DataLoaderOptions(kRankBatch).workers(2);
}

// Saves after `stop` of 30 steps, when the workers have loaded more, and resumes with `world` ranks.
void interrupt_and_resume(int64_t stop, int world, int64_t steps_left) {
  const ScratchFolder scratch;
  const auto notes = [&](int of, int rank) {
    return scratch / (std::to_string(of) + "-" + std::to_string(rank));
  };
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    LoaderRun run(scratch / "run", lockstep::make_data_loader(RowSet(), with_workers()));
    run.loader->set_epoch(2);
    ASSERT_EQ(run.loader->sampler().size() / kRankBatch, 30U);
    run.steps_until(stop, notes(2, group.rank()), [&](int64_t step) {
      if (step == stop) run.snapshots.save(run.ddp, run.optimizer, *run.loader, {.epoch = 2, .step = step});
    });
  });
  run_ranks(world, "shm", [&](ProcessGroup& group) {
    LoaderRun run(scratch / "run", lockstep::make_data_loader(RowSet(), with_workers()));
    const auto at = run.snapshots.resume(run.ddp, run.optimizer, *run.loader);
    EXPECT_EQ(at.epoch, 2);
    EXPECT_EQ(at.step, stop);
    run.loader->set_epoch(at.epoch);
    EXPECT_EQ(run.steps_until(-1, notes(10 + world, group.rank()), [](int64_t) {}), steps_left);
  });
  std::vector<fs::path> files{notes(2, 0), notes(2, 1)};
  for (int rank = 0; rank < world; ++rank) files.push_back(notes(10 + world, rank));
  EXPECT_EQ(noted(files), each_once());
}

TEST(LoaderSnapshots, TheRestOfTheEpochAndEachSampleOnce) { interrupt_and_resume(13, 2, 17); }
TEST(LoaderSnapshots, AfterTheFirstStep) { interrupt_and_resume(1, 2, 29); }
TEST(LoaderSnapshots, AtAnotherWorldSize) { interrupt_and_resume(12, 3, 12); }

TEST(LoaderSnapshots, ALoaderIsAPartLikeASampler) {
  const ScratchFolder scratch;
  run_ranks(2, "shm", [&](ProcessGroup&) {
    LoaderRun run(scratch / "run", lockstep::make_data_loader(RowSet(), with_workers()));
    const auto parts = [&]() -> std::vector<SnapshotPart> {
      return {{"net", run.ddp}, {"data", *run.loader}};
    };
    run.steps_until(5, "/dev/null", [](int64_t) {});
    run.snapshots.save(parts(), {.step = 5});
    const auto saved = run.loader->sampler().state();
    EXPECT_EQ(saved.consumed, 5 * 2 * kRankBatch);
    run.steps_until(9, "/dev/null", [](int64_t) {});
    run.snapshots.resume(parts());
    EXPECT_EQ(run.loader->sampler().state(), saved);
  });
}

TEST(LoaderSnapshots, TheRawWayIsWarnedOf) {
  const ScratchFolder scratch;
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    const auto warnings = [&](size_t workers, int64_t epoch, int64_t saved_epoch) {
      DistributedSampler sampler(kSize);
      sampler.set_epoch(epoch);
      auto options = torch::data::DataLoaderOptions(kRankBatch).workers(workers);
      LoaderRun run(scratch / "run", torch::data::make_data_loader(RowSet(), sampler, options));
      ::testing::internal::CaptureStderr();
      run.steps_until(6, "/dev/null", [&](int64_t step) {
        run.snapshots.save(run.ddp, run.optimizer, sampler, {.epoch = saved_epoch, .step = step});
      });
      return ::testing::internal::GetCapturedStderr();
    };
    EXPECT_EQ(warnings(0, 0, 0), "");
    EXPECT_EQ(warnings(2, 0, 1), "") << "saved at the start of the next epoch";
    const auto ahead = warnings(2, 3, 3);
    const auto back = warnings(0, 3, 0);
    if (group.rank() != 0) {
      EXPECT_EQ(ahead + back, "") << "only rank 0 warns";
      return;
    }
    EXPECT_THAT(ahead, AllOf(HasSubstr("ahead of the training"), HasSubstr("lockstep::make_data_loader")));
    EXPECT_THAT(back, AllOf(HasSubstr("starts at the beginning of epoch 0"), HasSubstr("in epoch 3 now"),
                            HasSubstr("{.epoch")));
  });
}

}  // namespace

}  // namespace lockstep::testing
