// Schedules and schedulers. tests/parity compares the values with Python's.
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <lockstep/error.h>
#include <lockstep/schedule.h>

#include "support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<double> first_values(const Schedule& schedule, int64_t count, double base = 1) {
  std::vector<double> values;
  for (int64_t step = 0; step < count; ++step) values.push_back(schedule(step, base));
  return values;
}

TEST(Schedules, HaveTheValuesThatTheirNamesPromise) {
  using namespace schedules;
  EXPECT_THAT(first_values(linear(0.5, 1.0, 4), 6, 8), ElementsAre(4, 5, 6, 7, 8, 8));
  EXPECT_THAT(first_values(constant(0.25, 2), 4, 8), ElementsAre(2, 2, 8, 8));
  EXPECT_THAT(first_values(step(2, 0.5), 5, 8), ElementsAre(8, 8, 4, 4, 2));
  EXPECT_THAT(first_values(multi_step({3, 1}, 0.5), 5, 8), ElementsAre(8, 4, 4, 2, 2));
  EXPECT_THAT(first_values(polynomial(4), 6, 8), ElementsAre(8, 6, 4, 2, 0, 0));
  EXPECT_THAT(first_values(exponential(0.5), 4, 8), ElementsAre(8, 4, 2, 1));
  EXPECT_THAT(first_values(lambda([](int64_t at) { return static_cast<double>(at); }), 3, 8),
              ElementsAre(0, 8, 16));
  EXPECT_THAT(first_values(sequential({constant(0.5, 100), step(1, 0.5)}, {2}), 5, 8),
              ElementsAre(4, 4, 8, 4, 2));
  EXPECT_THAT(first_values(chained({constant(0.5, 2), exponential(0.5)}), 4, 8), ElementsAre(4, 2, 2, 1));
}

TEST(Schedules, OfOneCycleReachTheirPeakAndStayAtTheirEnd) {
  const auto cycle =
      schedules::one_cycle(1, 10, {.pct_start = 0.3, .div_factor = 10, .final_div_factor = 100});
  EXPECT_DOUBLE_EQ(cycle(0, 123), 0.1);
  EXPECT_DOUBLE_EQ(cycle(2, 123), 1);
  EXPECT_NEAR(cycle(9, 123), 0.001, 1e-15);
  EXPECT_EQ(cycle(9, 123), cycle(1000, 123));
  EXPECT_TRUE(std::isfinite(schedules::one_cycle(1, 1)(0, 1)));
}

TEST(Schedules, OfWarmUpAndCosineRiseFallAndStay) {
  const auto schedule = schedules::warmup_cosine(10, 110, /*eta_min=*/0.5, /*start_factor=*/0.1);
  EXPECT_DOUBLE_EQ(schedule(0, 2), 0.2);
  EXPECT_DOUBLE_EQ(schedule(10, 2), 2);
  EXPECT_DOUBLE_EQ(schedule(60, 2), 1.25);
  EXPECT_DOUBLE_EQ(schedule(110, 2), 0.5);
  EXPECT_EQ(schedule(200, 2), schedule(110, 2));
}

TEST(Schedules, RefuseWhatCannotBeRight) {
  EXPECT_THAT(message_of<UsageError>([] { schedules::linear(0.1, 1, 0); }),
              HasSubstr("schedules::linear was given invalid arguments: total_iters is 0\nhint: "));
  EXPECT_THROW(schedules::step(0), UsageError);
  EXPECT_THROW(schedules::cosine_annealing(-1), UsageError);
  EXPECT_THROW(schedules::one_cycle(1, 10, {.pct_start = 2}), UsageError);
  EXPECT_THROW(schedules::lambda({}), UsageError);
  EXPECT_THROW(schedules::sequential({schedules::step(1)}, {5}), UsageError);
  EXPECT_THROW(schedules::sequential({schedules::step(1), {}}, {5}), UsageError);
  EXPECT_THROW(schedules::sequential({schedules::step(1), schedules::step(1), schedules::step(1)}, {5, 3}),
               UsageError);
  EXPECT_THROW(schedules::warmup_cosine(10, 10), UsageError);
}

struct TwoGroups {
  torch::nn::Linear model{2, 2};
  torch::optim::Adam optimizer{
      {{{model->weight}}, {{model->bias}, std::make_unique<torch::optim::AdamOptions>(0.25)}},
      torch::optim::AdamOptions(0.5)};
  std::vector<double> rates() {
    return {optimizer.param_groups()[0].options().get_lr(), optimizer.param_groups()[1].options().get_lr()};
  }
};

TEST(Scheduler, SetsTheRateOfEachGroupByItsOwnBase) {
  TwoGroups two;
  Scheduler scheduler(two.optimizer, schedules::linear(0.5, 1, 2));
  EXPECT_THAT(two.rates(), ElementsAre(0.25, 0.125));  // set immediately
  scheduler.step();
  scheduler.step();
  EXPECT_THAT(two.rates(), ElementsAre(0.5, 0.25));
  EXPECT_EQ(scheduler.get_last_lr(), two.rates());
  EXPECT_EQ(scheduler.last_step(), 2);
  scheduler.set_last_step(1);
  EXPECT_THAT(two.rates(), ElementsAre(0.375, 0.1875));
  EXPECT_THROW(scheduler.set_last_step(-1), UsageError);
}

TEST(Scheduler, TakesAScheduleForEachGroup) {
  TwoGroups two;
  Scheduler scheduler(two.optimizer, {schedules::exponential(0.5), schedules::step(100)});
  scheduler.step();
  EXPECT_THAT(two.rates(), ElementsAre(0.25, 0.25));
  EXPECT_THROW(Scheduler(two.optimizer, std::vector<Schedule>(3, schedules::step(1))), UsageError);
  EXPECT_THROW(Scheduler(two.optimizer, Schedule()), UsageError);
  EXPECT_THROW(scheduler.restore({.last_step = 1, .base_lrs = {1}}), SnapshotError);
  two.optimizer.add_param_group({{torch::zeros({1}, at::requires_grad())}});
  EXPECT_THAT(message_of<UsageError>([&] { scheduler.step(); }), HasSubstr("2 then, 3 now"));
}

TEST(ReduceLROnPlateau, ReducesAfterItsPatience) {
  TwoGroups two;
  ReduceLROnPlateau plateau(two.optimizer, {.factor = 0.5, .patience = 1, .min_lr = 0.125});
  plateau.step(1);
  plateau.step(1);
  EXPECT_THAT(two.rates(), ElementsAre(0.5, 0.25));
  plateau.step(1);
  EXPECT_THAT(two.rates(), ElementsAre(0.25, 0.125));
  plateau.step(std::nan(""));
  plateau.step(std::nan(""));
  EXPECT_THAT(two.rates(), ElementsAre(0.125, 0.125));
  EXPECT_THROW(ReduceLROnPlateau(two.optimizer, {.factor = 1}), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
