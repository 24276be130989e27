// Runs the code of docs/patterns.md: each pattern ends in the same way on all ranks, with identical replicas.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <limits>
#include <sstream>

#include <lockstep/lockstep.h>

#include "ddp/training.h"
#include "support/run_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kRows = 4;

// A loss that differs from rank to rank, as the loss of a rank always does.
struct Job {
  explicit Job(ProcessGroup& of) : world(of), group(default_group()) {}

  at::Tensor batch(int step) const { return share_of(global_batch(kRows * world.world_size(), step), world); }
  template <class Optimizer>
  void train_one_epoch(Optimizer& optimizer) {
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss_of(ddp(batch(step)), batch(step)).backward();
      optimizer.step();
    }
  }
  double validation_loss() {
    const at::NoGradGuard no_grad;
    return loss_of(ddp(batch(9)), batch(9)).item<double>();
  }
  // Fails unless the count and the replicas are the same on all ranks.
  void expect_same(int64_t count) {
    EXPECT_TRUE(world.all_gather(at::full({1}, count, at::kLong))[0].equal(at::full({1}, count, at::kLong)));
    ddp.verify_replicas();
  }

  ProcessGroup& world;
  std::shared_ptr<ProcessGroup> group;
  std::shared_ptr<Net> net = make_net();
  DistributedDataParallel<Net> ddp{net, group};
};

void run_pattern(const std::function<void(Job&)>& body) {
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    Job job(group);
    body(job);
  });
}

TEST(Patterns, EarlyStopping) {
  run_pattern([](Job& job) {
    auto& ddp = job.ddp;
    const auto& group = job.group;
    torch::optim::SGD optimizer(ddp.parameters(), 1.0);  // far too high, so the loss does not improve
    int64_t done = 0;
    const auto train_one_epoch = [&] { job.train_one_epoch(optimizer), ++done; };
    const auto validation_loss = [&] { return job.validation_loss(); };
    const int64_t epochs = 50, patience = 2;
    // clang-format off
    double best = std::numeric_limits<double>::infinity();
    int64_t bad_epochs = 0;
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      train_one_epoch();
      const double loss = lockstep::mean(validation_loss(), group);  // bitwise the same on all ranks
      bad_epochs = loss < best ? 0 : bad_epochs + 1;
      best = std::min(best, loss);
      if (bad_epochs > patience) break;                              // so either all ranks stop here, or none
    }
    // clang-format on
    EXPECT_LT(done, epochs);
    job.expect_same(done);
  });
}

TEST(Patterns, ReduceOnPlateau) {
  run_pattern([](Job& job) {
    auto& ddp = job.ddp;
    const auto& group = job.group;
    torch::optim::SGD optimizer(ddp.parameters(), 1.0);
    const auto train_one_epoch = [&] { job.train_one_epoch(optimizer); };
    const auto validation_loss = [&] { return job.validation_loss(); };
    const int64_t epochs = 12;
    // clang-format off
    lockstep::ReduceLROnPlateau plateau(optimizer, {.factor = 0.5, .patience = 1});
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      train_one_epoch();
      plateau.step(lockstep::mean(validation_loss(), group));
    }
    // clang-format on
    const auto rate = optimizer.param_groups()[0].options().get_lr();
    EXPECT_LT(rate, 1.0);
    EXPECT_EQ(mean(rate, group), rate);
    job.expect_same(0);
  });
}

TEST(Patterns, LineSearch) {
  run_pattern([](Job& job) {
    auto& ddp = job.ddp;
    const auto& group = job.group;
    const auto x = job.batch(0), y = targets_of(job.batch(0));
    // clang-format off
    const auto options = torch::optim::LBFGSOptions(1).line_search_fn("strong_wolfe");
    torch::optim::LBFGS optimizer(ddp.parameters(), options);
    optimizer.step(lockstep::averaged([&] {
      optimizer.zero_grad();
      auto loss = torch::mse_loss(ddp(x), y);
      loss.backward();
      return loss;
    }, group));
    // clang-format on
    EXPECT_GT(ddp.stats().steps, 2);
    job.expect_same(ddp.stats().steps);
  });
}

TEST(Patterns, ReachingATarget) {
  run_pattern([](Job& job) {
    auto& ddp = job.ddp;
    const auto& group = job.group;
    torch::optim::Adam optimizer(ddp.parameters(), 1e-2);
    const auto train_one_epoch = [&] { job.train_one_epoch(optimizer); };
    const auto validation_loss = [&] { return job.validation_loss(); };
    const double target = 0.5 * mean(validation_loss(), group);
    int64_t epoch = 0;
    // clang-format off
    while (!lockstep::all_agree(validation_loss() < target, group)) {
      train_one_epoch();
      ++epoch;
    }
    // clang-format on
    EXPECT_GT(epoch, 0);
    job.expect_same(epoch);
  });
}

TEST(Patterns, TimeLimits) {
  const ScratchFolder scratch;
  run_pattern([&](Job& job) {
    auto& ddp = job.ddp;
    const auto& group = job.group;
    torch::optim::Adam optimizer(ddp.parameters(), 1e-2);
    int64_t done = 0;
    const auto train_one_epoch = [&] { job.train_one_epoch(optimizer), ++done; };
    Snapshots snapshots(scratch / "run", group);
    using Clock = std::chrono::steady_clock;
    // The clocks differ: the limit has passed on rank 0 from the start, and never passes on the others.
    const auto limit = job.world.rank() == 0 ? Clock::now() : Clock::time_point::max();
    const int64_t epochs = 1000;
    // clang-format off
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      train_one_epoch();
      if (lockstep::any(Clock::now() >= limit, group)) {  // the ranks' clocks differ: the first one decides
        snapshots.save(ddp, optimizer, {.epoch = epoch + 1});
        break;
      }
    }
    // clang-format on
    EXPECT_EQ(done, 1);
    EXPECT_EQ(snapshots.resume(ddp, optimizer).epoch, 1);
    job.expect_same(done);
  });
}

TEST(Patterns, SkippingABatch) {
  run_pattern([](Job& job) {
    auto& ddp = job.ddp;
    const auto& group = job.group;
    torch::optim::SGD optimizer(ddp.parameters(), 1e-2);
    int64_t skipped = 0;
    for (int step = 0; step < 4; ++step) {
      auto x = job.batch(step);
      const auto y = targets_of(x);
      if (step == 1 && job.world.rank() == 1) x = x / 0.0;
      // clang-format off
      optimizer.zero_grad();
      auto loss = torch::mse_loss(ddp(x), y);
      loss.backward();                          // always: the other ranks wait for these gradients
      if (lockstep::any(!std::isfinite(loss.item<double>()), group)) {
        ++skipped;
      } else {
        optimizer.step();
      }
      // clang-format on
    }
    EXPECT_EQ(skipped, 1);
    job.expect_same(skipped);
  });
}

TEST(Patterns, UnevenData) {
  run_pattern([](Job& job) {
    auto& ddp = job.ddp;
    const auto& group = job.group;
    torch::optim::SGD optimizer(ddp.parameters(), 1e-2);
    std::vector<std::pair<at::Tensor, at::Tensor>> batches;
    for (int step = 0; step < 2 + 3 * job.world.rank(); ++step) {
      batches.emplace_back(job.batch(step), targets_of(job.batch(step)));
    }
    // clang-format off
    lockstep::Average train_loss;
    {
      lockstep::Join join(ddp);
      for (auto& [x, y] : batches) {            // call no other collective in this loop: a rank may have left it
        optimizer.zero_grad();
        auto loss = torch::mse_loss(ddp(x), y);
        loss.backward();
        optimizer.step();
        train_loss.add(loss, x.size(0));
      }
      join.finish();                            // takes part in the other ranks' steps until all have finished
    }
    const double mean_loss = train_loss.all_reduce(group);
    // clang-format on
    EXPECT_TRUE(std::isfinite(mean_loss));
    job.expect_same(0);
  });
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Removes the indentation, which may differ between the document and this file.
std::string lines_of(const std::string& text) {
  std::istringstream in(text);
  std::string lines;
  for (std::string line; std::getline(in, line);) {
    line.erase(0,
               line.find_first_not_of(' ') == std::string::npos ? line.size() : line.find_first_not_of(' '));
    lines += line + '\n';
  }
  return lines;
}

TEST(Patterns, AreThoseOfThePage) {
  const auto here = std::filesystem::path(__FILE__);
  const auto code = lines_of(read_text(here));
  const auto page = read_text(here.parent_path().parent_path().parent_path() / "docs" / "patterns.md");
  size_t blocks = 0;
  for (size_t at = page.find("```cpp\n"); at != std::string::npos; at = page.find("```cpp\n", at)) {
    at += 7;
    const auto end = page.find("```", at);
    const auto block = lines_of(page.substr(at, end - at));
    EXPECT_NE(code.find(block), std::string::npos) << "not in patterns_test.cc:\n" << block;
    at = end;
    ++blocks;
  }
  EXPECT_EQ(blocks, 7U);
}

}  // namespace
}  // namespace lockstep::testing
