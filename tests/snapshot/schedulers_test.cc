// Learning-rate schedulers in snapshots: a resumed run has the rates of an uninterrupted one. Also the
// warnings about optimizers that differ between ranks.
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <limits>

#include <torch/torch.h>
#if __has_include(<torch/optim/schedulers/reduce_on_plateau_scheduler.h>)
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#endif

#include <lockstep/schedule.h>
#include <lockstep/snapshot.h>

#include "snapshot/about.h"
#include "snapshot/scratch.h"
#include "snapshot/stored_file.h"
#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::testing {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A model and an optimizer with two groups, in a world of one. It does not train, because only the rates
// matter.
struct Lone {
  explicit Lone(const std::filesystem::path& directory, double lr = 0.1)
      : optimizer({{{model->weight}}, {{model->bias}, std::make_unique<torch::optim::SGDOptions>(lr / 2)}},
                  torch::optim::SGDOptions(lr)),
        snapshots(directory, group()) {}

  static std::shared_ptr<ProcessGroup> group() {
    const auto made = init_process_group({.rank = 0, .world_size = 1});
    destroy_process_group();  // destroys the default group; this object keeps its own
    return made;
  }
  std::vector<double> rates() {
    std::vector<double> all;
    for (auto& of : optimizer.param_groups()) all.push_back(of.options().get_lr());
    return all;
  }

  torch::nn::Linear model{2, 2};
  torch::optim::SGD optimizer;
  Snapshots snapshots;
};

// Makes the epochs [begin, end), with a snapshot after each. Returns the rates.
template <class Kind, class Step>
std::vector<std::vector<double>> train(Lone& run, Kind& scheduler, int64_t end, const Step& step) {
  std::vector<std::vector<double>> rates;
  auto at = run.snapshots.resume(run.model, run.optimizer, scheduler);
  for (auto epoch = at.epoch; epoch < end; ++epoch) {
    rates.push_back(run.rates());
    step(scheduler, epoch);
    run.snapshots.save(run.model, run.optimizer, scheduler, {.epoch = epoch + 1});
  }
  return rates;
}

// A run that is interrupted after each epoch must have the rates of one that is not.
template <class Make, class Step>
std::vector<std::vector<double>> expect_resumes(const Make& make, const Step& step, int64_t epochs = 12) {
  const ScratchFolder scratch;
  Lone straight(scratch / "straight");
  auto never_interrupted = make(straight.optimizer);
  const auto expected = train(straight, never_interrupted, epochs, step);
  std::vector<std::vector<double>> resumed;
  for (int64_t end = 1; end <= epochs; ++end) {
    Lone again(scratch / "again", end == 1 ? 0.1 : 0.7);  // the snapshot replaces this rate
    auto scheduler = make(again.optimizer);
    for (const auto& rates : train(again, scheduler, end, step)) resumed.push_back(rates);
  }
  EXPECT_EQ(resumed, expected);
  return expected;
}

const auto step_it = [](auto& scheduler, int64_t) { scheduler.step(); };

// A loss that falls and then stays, so that the plateau reduces the rate.
double loss_at(int64_t epoch) { return std::max(1.0 / static_cast<double>(epoch + 1), 0.3); }

TEST(SchedulerSnapshots, StepLrGoesOnWhereItStood) {
  const auto rates = expect_resumes(
      [](auto& optimizer) { return torch::optim::StepLR(optimizer, /*step_size=*/2, /*gamma=*/0.5); },
      step_it);
  EXPECT_DOUBLE_EQ(rates[5][0], 0.025);
}

TEST(SchedulerSnapshots, AScheduleGoesOnWhereItStood) {
  expect_resumes([](auto& optimizer) { return Scheduler(optimizer, schedules::warmup_cosine(3, 12, 1e-3)); },
                 step_it);
}

TEST(SchedulerSnapshots, APlateauGoesOnWhereItStood) {
  const auto rates = expect_resumes(
      [](auto& optimizer) {
        return ReduceLROnPlateau(optimizer, {.factor = 0.5, .patience = 1, .cooldown = 1});
      },
      [](auto& scheduler, int64_t epoch) { scheduler.step(loss_at(epoch)); });
  EXPECT_LT(rates.back()[0], rates.front()[0]);
}

TEST(SchedulerSnapshots, LibTorchsPlateauGoesOnWhereItStood) {
#if __has_include(<torch/optim/schedulers/reduce_on_plateau_scheduler.h>)
  using Plateau = torch::optim::ReduceLROnPlateauScheduler;
  expect_resumes([](auto& optimizer) { return Plateau(optimizer, Plateau::min, 0.5, 1); },
                 [](auto& scheduler, int64_t epoch) { scheduler.step(static_cast<float>(loss_at(epoch))); });
#else
  GTEST_SKIP() << "needs LibTorch 2.0";
#endif
}

// A scheduler class of the program.
struct Halving : torch::optim::LRScheduler {
  using LRScheduler::LRScheduler;
  std::vector<double> get_lrs() override {
    auto rates = get_current_lrs();
    if (step_count_ % 3 == 2) {
      for (auto& rate : rates) rate /= 2;
    }
    return rates;
  }
};

TEST(SchedulerSnapshots, AClassOfTheProgramsOwnGoesOnWhereItStood) {
  expect_resumes([](auto& optimizer) { return Halving(optimizer); }, step_it);
}

TEST(SchedulerSnapshots, SetTheRatesOfAnOptimizerThatIsNotInTheSnapshot) {
  const ScratchFolder scratch;
  {
    Lone run(scratch / "run");
    Scheduler scheduler(run.optimizer, schedules::exponential(0.5));
    scheduler.set_last_step(3);
    run.snapshots.save({{"", run.model}, {"schedule", scheduler}});
  }
  Lone run(scratch / "run");
  Scheduler scheduler(run.optimizer, schedules::exponential(0.5));
  run.snapshots.resume({{"", run.model}, {"schedule", scheduler}});
  EXPECT_EQ(scheduler.last_step(), 3);
  EXPECT_EQ(run.rates(), (std::vector<double>{0.1 / 8, 0.05 / 8}));
}

TEST(SchedulerSnapshots, RefuseWhatDoesNotFitUnchanged) {
  const ScratchFolder scratch;
  Lone run(scratch / "run");
  torch::optim::StepLR steps(run.optimizer, 2, 0.5);
  Scheduler scheduler(run.optimizer, schedules::exponential(0.5));
  run.snapshots.save(run.model, run.optimizer, {.epoch = 4});
  const auto none =
      message_of<SnapshotError>([&] { run.snapshots.resume(run.model, run.optimizer, scheduler); });
  EXPECT_THAT(none, AllOf(HasSubstr("no part 'scheduler' among its schedulers"),
                          HasSubstr("Scheduler::set_last_step"), HasSubstr("give it to save() from now on")));

  run.snapshots.save(run.model, run.optimizer, steps, {.epoch = 5});
  const auto other =
      message_of<SnapshotError>([&] { run.snapshots.resume(run.model, run.optimizer, scheduler); });
  EXPECT_THAT(other,
              AllOf(HasSubstr("not a Scheduler"), HasSubstr("torch::optim::StepLR"), HasSubstr("hint: ")));
  EXPECT_EQ(scheduler.last_step(), 0);

  // The way that the hint describes.
  const auto at = run.snapshots.resume(run.model, run.optimizer);
  scheduler.set_last_step(at.epoch);
  EXPECT_DOUBLE_EQ(run.rates()[0], 0.1 / 32);
  run.snapshots.save(run.model, run.optimizer, scheduler, at);
  EXPECT_EQ(run.snapshots.resume(run.model, run.optimizer, scheduler).epoch, 5);
}

TEST(SchedulerSnapshots, AreMissedWhenTheyWereForgotten) {
  const ScratchFolder scratch;
  const auto resumed = [&](double lr, bool give_it) {
    ::testing::internal::CaptureStderr();
    Lone run(scratch / "run", lr);
    Scheduler scheduler(run.optimizer, schedules::step(1, 0.5));
    if (give_it) {
      run.snapshots.resume(run.model, run.optimizer, scheduler);
    } else {
      run.snapshots.resume(run.model, run.optimizer);
    }
    scheduler.step();
    run.snapshots.save(run.model, run.optimizer, scheduler);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(resumed(0.5, true), "");
  EXPECT_EQ(resumed(0.5, true), "");
  EXPECT_THAT(
      resumed(0.5, false),
      AllOf(HasSubstr("lr of group 0 of the optimizer 'optimizer' is the snapshot's: 0.125; the program "
                      "made it with 0.5\nhint: give the scheduler"),
            Not(HasSubstr("group 1"))));
}

TEST(SchedulerSnapshots, AreShown) {
  const ScratchFolder scratch;
  Lone run(scratch / "run");
  torch::optim::StepLR steps(run.optimizer, 2, 0.5);
  ReduceLROnPlateau plateau(run.optimizer);
  steps.step();
  run.snapshots.save({{"", run.model}, {"steps", steps}, {"plateau", plateau}});
  const auto about = snapshot::read_summary(run.snapshots.latest()->path).about;
  EXPECT_THAT(snapshot::schedulers_in(about),
              ::testing::ElementsAre(std::pair("plateau",
                                               "ReduceLROnPlateau, best inf, cooldown_counter 0, "
                                               "last_epoch 0, num_bad_epochs 0"),
                                     std::pair("steps", "torch::optim::StepLR, step_count 1")));
}

// The output of rank 0 in a run of three ranks whose learning rates may differ.
std::string output_of_rank_0(double lr_of_others, bool from_the_start) {
  const ScratchFolder scratch;
  const auto outcomes = start_ranks(3, [&](int rank) {
    const auto group = init_process_group({.backend = "shm"});
    torch::nn::Linear model(2, 2);
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3).weight_decay(0.25));
    const auto change = [&] {
      if (rank > 0) optimizer.param_groups()[0].options().set_lr(lr_of_others);
    };
    Snapshots snapshots(scratch / "run", group);
    if (from_the_start) change();
    snapshots.resume(model, optimizer);
    change();
    snapshots.save(model, optimizer);
    snapshots.save(model, optimizer);
  });
  expect_success(outcomes);
  EXPECT_THAT(outcomes[1].output, Not(HasSubstr("warning")));
  return outcomes[0].output;
}

TEST(SchedulerSnapshots, WarnOnceOfRanksWithOtherRates) {
  for (const bool from_the_start : {true, false}) {
    const auto output = output_of_rank_0(2e-3, from_the_start);
    EXPECT_THAT(output,
                HasSubstr("lr of group 0 of the optimizer 'optimizer' is 0.001 on rank 0, and 0.002 on "
                          "ranks 1, 2\n"));
    EXPECT_THAT(output, AllOf(HasSubstr("hint: "), Not(HasSubstr("weight_decay"))));
    EXPECT_EQ(output.find("their optimizers differ"), output.rfind("their optimizers differ"));
  }
  EXPECT_THAT(output_of_rank_0(1e-3, true), Not(HasSubstr("warning")));
}

}  // namespace
}  // namespace lockstep::testing
