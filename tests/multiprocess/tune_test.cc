// How init_process_group tunes the calling process, and how to prevent that.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "support/run_ranks.h"
#include "tuning/blas.h"
#include "tuning/plan.h"
#include "tuning/topology.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

Environment without_settings() {
  return {{"OMP_NUM_THREADS", ""}, {"LOCKSTEP_BIND", ""}, {"LOCKSTEP_THREADS", ""}};
}

TEST(Tune, RanksOfOneMachineShareItsCores) {
  const auto machine = tuning::read_topology(tuning::affinity_of());
  if (machine.cpus.size() < 2) GTEST_SKIP() << "nothing to share on one CPU";
  expect_success(start_ranks(
      2,
      [&](int rank) {
        const auto group = init_process_group({.timeout = 20s});
        const auto mine = tuning::affinity_of();
        auto mask = at::zeros({1024}, at::kInt);
        for (const int cpu : mine) mask[cpu] = 1;
        group->all_reduce(mask);
        EXPECT_EQ(mask.max().item<int>(), 1) << "rank " << rank << " shares a CPU with another";
        EXPECT_EQ(mask.sum().item<int>(), static_cast<int>(machine.cpus.size())) << "a CPU is not used";
        EXPECT_LE(at::get_num_threads(), std::max(1, machine.usable_cores() / 2));
        EXPECT_LE(tuning::loaded_blas().threads.value_or(1), std::max(1, machine.usable_cores() / 2));
      },
      {.environment = [](int) { return without_settings(); }}));
}

// The number of threads was chosen by the program's author or by LibTorch.
TEST(Tune, AWorldOfOneKeepsItsThreads) {
  expect_success(start_ranks(1,
                             [&](int) {
                               const int threads = at::get_num_threads();
                               const auto blas = tuning::loaded_blas().threads;
                               init_process_group({.timeout = 20s});
                               EXPECT_EQ(at::get_num_threads(), threads);
                               EXPECT_EQ(tuning::loaded_blas().threads, blas);
                             },
                             {.environment = [](int) { return without_settings(); }}));
}

TEST(Tune, CanBeLeftOut) {
  expect_success(start_ranks(2,
                             [&](int) {
                               const auto cpus = tuning::affinity_of();
                               const int threads = at::get_num_threads();
                               const auto blas = tuning::loaded_blas().threads;
                               init_process_group({.timeout = 20s, .tune = false});
                               EXPECT_EQ(tuning::affinity_of(), cpus);
                               EXPECT_EQ(at::get_num_threads(), threads);
                               EXPECT_EQ(tuning::loaded_blas().threads, blas);
                             },
                             {.environment = [](int) { return without_settings(); }}));
}

TEST(Tune, ThreadsAreRaisedOnlyWhenTheUserAsks) {
  expect_success(start_ranks(1,
                             [&](int) {
                               at::set_num_threads(1);
                               init_process_group({.timeout = 20s});
                               EXPECT_EQ(at::get_num_threads(), 2);
                             },
                             {.environment = [](int) {
                               return Environment{{"OMP_NUM_THREADS", ""}, {"LOCKSTEP_THREADS", "2"}};
                             }}));
}

TEST(Tune, WhatTheUserSetsStays) {
  const auto before = tuning::affinity_of();
  expect_success(start_ranks(2,
                             [&](int) {
                               at::set_num_threads(3);
                               init_process_group({.timeout = 20s});
                               EXPECT_EQ(tuning::affinity_of(), before);
                               EXPECT_EQ(at::get_num_threads(), 3);
                             },
                             {.environment = [](int) {
                               return Environment{{"LOCKSTEP_BIND", "0"}, {"LOCKSTEP_THREADS", "0"}};
                             }}));
}

TEST(Tune, RanksThatTheirLauncherHasBoundKeepTheirCores) {
  const auto all = tuning::affinity_of();
  if (all.size() < 2) GTEST_SKIP() << "nothing to bind to on one CPU";
  expect_success(start_ranks(2,
                             [&](int rank) {
                               // The reverse of lockstep's choice.
                               const std::vector<int> given = {all[1 - rank]};
                               ASSERT_TRUE(tuning::bind_this_process(given));
                               init_process_group({.timeout = 20s});
                               EXPECT_EQ(tuning::affinity_of(), given);
                               EXPECT_EQ(at::get_num_threads(), 1);
                             },
                             {.environment = [](int) { return without_settings(); }}));
}

TEST(Tune, ASwitchThatMakesNoSenseIsNamed) {
  const auto outcomes = start_ranks(1, [](int) { init_process_group(); }, {.environment = [](int) {
                                      return Environment{{"LOCKSTEP_BIND", "perhaps"}};
                                    }});
  EXPECT_NE(outcomes[0].output.find("UsageError: environment variable LOCKSTEP_BIND"), std::string::npos)
      << outcomes[0].describe();
}

}  // namespace
}  // namespace lockstep::testing
