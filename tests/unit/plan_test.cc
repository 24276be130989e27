// The model of `lockstep plan`: what must hold whatever the constants, and how they are read and fitted.
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <string>
#include <unistd.h>
#include <vector>

#include <lockstep/error.h>

#include "plan/bench_rows.h"
#include "plan/constants.h"
#include "plan/exchange.h"
#include "plan/limits.h"
#include "plan/memory.h"
#include "plan/overlap.h"
#include "plan/predict.h"
#include "plan/units.h"

namespace lockstep::plan {
namespace {

using testing::HasSubstr;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// A job whose parts all cost something.
Job some_job() {
  return {.parameters = 1e8,
          .step_s = 0.5,
          .machines = 4,
          .ranks_per_machine = 8,
          .link_bits_per_s = 10e9,
          .rtt_s = 100e-6};
}

double step_s(const Job& job) { return predict(builtin_constants(), job).step_s; }

double step_s(const std::function<void(Job&)>& change) {
  auto job = some_job();
  change(job);
  return step_s(job);
}

// ---- Units

TEST(PlanUnits, Counts) {
  EXPECT_EQ(parse_count("1e9"), 1e9);
  EXPECT_EQ(parse_count("350M"), 350e6);
  EXPECT_EQ(parse_count("1.3B"), 1.3e9);
  EXPECT_EQ(parse_count("7G"), 7e9);
  EXPECT_EQ(parse_count("12k"), 12e3);
  EXPECT_EQ(parse_count("17"), 17);
}

TEST(PlanUnits, Times) {
  EXPECT_DOUBLE_EQ(parse_seconds("50us").value(), 50e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("50µs").value(), 50e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("0.2ms").value(), 0.2e-3);
  EXPECT_EQ(parse_seconds("2s"), 2);
  EXPECT_EQ(parse_seconds("0"), 0);
  EXPECT_EQ(parse_seconds("50"), std::nullopt);
}

TEST(PlanUnits, Rates) {
  EXPECT_EQ(parse_bits_per_s("25Gbit"), 25e9);
  EXPECT_EQ(parse_bits_per_s("100Mbit/s"), 100e6);
  EXPECT_EQ(parse_bits_per_s("2.5Gbps"), 2.5e9);
  EXPECT_EQ(parse_bits_per_s("3GB/s"), 24e9);
  EXPECT_EQ(parse_bits_per_s("1000"), std::nullopt);
  EXPECT_EQ(parse_bits_per_s("25GB"), std::nullopt);
}

TEST(PlanUnits, Nonsense) {
  for (const auto* text : {"", " ", "x", "-1", "1e", "1x", "1 M", "M", "nan", "inf", "1e999", "1e308T",
                           "0x10", "+1", "1,5", "1e9 ", "1M2", "--", "1..2"}) {
    EXPECT_EQ(parse_count(text), std::nullopt) << text;
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
    EXPECT_EQ(parse_seconds(std::string(text) + "us"), std::nullopt) << text;
    EXPECT_EQ(parse_bits_per_s(std::string(text) + "Gbit"), std::nullopt) << text;
  }
}

TEST(PlanUnits, Text) {
  EXPECT_EQ(seconds_text(0.3), "300 ms");
  EXPECT_EQ(seconds_text(0.9999), "1 s");
  EXPECT_EQ(seconds_text(12.34), "12.3 s");
  EXPECT_EQ(seconds_text(50e-6), "50 µs");
  EXPECT_EQ(seconds_text(0), "0 µs");
  EXPECT_EQ(seconds_text(5400), "1.5 h");
  EXPECT_EQ(bytes_text(4e9), "3.73 GiB");
  EXPECT_EQ(bytes_text(25 * kMiB), "25 MiB");
  EXPECT_EQ(bytes_text(7), "7 B");
  EXPECT_EQ(bits_per_s_text(25e9), "25 Gbit/s");
  EXPECT_EQ(count_text(350e6), "350 M");
  EXPECT_EQ(count_text(999), "999");
}

// ---- Buckets

std::vector<double> bucket_mib(const Job& job) {
  std::vector<double> sizes;
  for (const auto& bucket : buckets_of(Scheme::Hybrid, job)) sizes.push_back(bucket.bytes / kMiB);
  return sizes;
}

TEST(PlanBuckets, FirstIsSmaller) {
  EXPECT_EQ(bucket_mib({.parameters = 60 * kMiB / 4}), (std::vector<double>{1, 25, 25, 9}));
  EXPECT_EQ(bucket_mib({.parameters = kMiB / 8}), (std::vector<double>{0.5}));
  EXPECT_EQ(bucket_mib({.parameters = kMiB / 4, .bucket_bytes = kMiB / 2}), (std::vector<double>{0.5, 0.5}));
}

TEST(PlanBuckets, TensorsAreWhole) {
  // Tensors of 4 MiB: the first fills a bucket, six fit into 25 MiB.
  EXPECT_EQ(bucket_mib({.parameters = 12 * kMiB, .tensors = 12}), (std::vector<double>{4, 24, 20}));
  // Each is larger than a bucket.
  EXPECT_EQ(bucket_mib({.parameters = 48 * kMiB / 4, .tensors = 3, .bucket_bytes = 2 * kMiB}),
            (std::vector<double>{16, 16, 16}));
}

TEST(PlanBuckets, AreReadyInProportion) {
  const Job job{.parameters = 1e9 / 3, .tensors = 7, .step_s = 0.9};
  double bytes = 0;
  for (const auto& bucket : buckets_of(Scheme::Hybrid, job)) {
    bytes += bucket.bytes;
    EXPECT_NEAR(bucket.ready_s, 0.6 * bytes / job.gradient_bytes(), 1e-9);
  }
  EXPECT_DOUBLE_EQ(bytes, job.gradient_bytes());
  EXPECT_EQ(buckets_of(Scheme::Hybrid, job).back().ready_s, 0.9 * job.backward_share);
}

// ---- Overlap

constexpr Cost link_cost(double seconds) { return {.link_s = seconds}; }

TEST(PlanOverlap, OneAfterTheOther) {
  const auto overlap =
      simulate({{1, 0.25}, {1, 0.5}, {1, 1}}, {link_cost(0.5), link_cost(0.5), link_cost(0.5)}, 1, 1);
  ASSERT_EQ(overlap.buckets.size(), 3u);
  EXPECT_DOUBLE_EQ(overlap.buckets[0].begun_s, 0.25);
  EXPECT_DOUBLE_EQ(overlap.buckets[1].begun_s, 0.75);  // ready at 0.5
  EXPECT_DOUBLE_EQ(overlap.buckets[2].begun_s, 1.25);
  EXPECT_DOUBLE_EQ(overlap.computed_s, 1);
  EXPECT_DOUBLE_EQ(overlap.ended_s, 1.75);
}

TEST(PlanOverlap, HiddenIfShort) {
  const auto overlap = simulate({{1, 0.25}, {1, 0.5}}, {link_cost(0.1), link_cost(0.1)}, 1, 1);
  EXPECT_DOUBLE_EQ(overlap.ended_s, 1);
}

TEST(PlanOverlap, WorkOnTheSameCoresIsNotHidden) {
  const Cost cost{.core_s = 0.1};
  const auto same = simulate({{1, 0.25}, {1, 0.5}}, {cost, cost}, 1, 1);
  EXPECT_NEAR(same.ended_s, 1.2, 1e-9);
  EXPECT_NEAR(same.buckets[0].ended_s, 0.45, 1e-9);  // with half of the core
  const auto other = simulate({{1, 0.25}, {1, 0.5}}, {cost, cost}, 1, 0);
  EXPECT_NEAR(other.ended_s, 1, 1e-9);
  EXPECT_NEAR(other.buckets[0].ended_s, 0.35, 1e-9);
}

TEST(PlanOverlap, Nothing) {
  EXPECT_EQ(simulate({}, {}, 0, 1).ended_s, 0);
  EXPECT_EQ(simulate({}, {}, 2, 1).ended_s, 2);
  EXPECT_DOUBLE_EQ(simulate({{1, 0}}, {link_cost(3)}, 0, 1).ended_s, 3);
  EXPECT_DOUBLE_EQ(simulate({{1, 1}}, {Cost{}}, 1, 1).ended_s, 1);
}

// ---- Limiting cases

TEST(PlanPrediction, OneRankOnlyComputes) {
  for (const auto scheme : {Scheme::Hybrid, Scheme::Ring}) {
    const auto prediction = predict(builtin_constants(), {.parameters = 1e9, .step_s = 0.3}, scheme);
    EXPECT_EQ(prediction.step_s, 0.3);
    EXPECT_EQ(prediction.exposed_s, 0);
    EXPECT_EQ(prediction.link_bytes, 0);
    EXPECT_EQ(prediction.efficiency(), 1);
  }
}

TEST(PlanPrediction, OneMachineUsesNoLink) {
  const auto prediction =
      predict(builtin_constants(), {.parameters = 1e9, .step_s = 0.3, .ranks_per_machine = 8});
  EXPECT_EQ(prediction.link_bytes, 0);
  // Each rank reads and writes the gradients once.
  EXPECT_GE(prediction.exposed_s, 2 * 4e9 / builtin_constants().core_bytes_per_s);
}

TEST(PlanPrediction, NoComputing) {
  auto job = some_job();
  job.step_s = 0;
  const auto prediction = predict(builtin_constants(), job);
  EXPECT_EQ(prediction.step_s, prediction.exposed_s);
  EXPECT_NEAR(prediction.exposed_s, prediction.communication_s, 1e-12);
  EXPECT_EQ(prediction.efficiency(), 0);
}

TEST(PlanPrediction, InfiniteLink) {
  auto job = some_job();
  job.link_bits_per_s = kInfinite;
  const auto prediction = predict(builtin_constants(), job);
  EXPECT_GT(prediction.exposed_s, 0);  // the CPUs still work
  EXPECT_TRUE(std::isfinite(prediction.step_s));
  EXPECT_LT(prediction.step_s, step_s(some_job()));
}

TEST(PlanPrediction, NothingCosts) {
  auto job = some_job();
  job.link_bits_per_s = kInfinite;
  job.rtt_s = 0;
  const Constants free{.core_bytes_per_s = kInfinite, .machine_bytes_per_s = kInfinite};
  EXPECT_NEAR(predict(free, job).step_s, job.step_s, 1e-12);
  EXPECT_NEAR(predict(free, job, Scheme::Ring).step_s, job.step_s, 1e-12);
}

// ---- Bounds

TEST(PlanPrediction, BytesOfALink) {
  const double bytes = some_job().gradient_bytes();
  const auto link_bytes = [](int machines, Scheme scheme = Scheme::Hybrid) {
    auto job = some_job();
    job.machines = machines;
    return predict(builtin_constants(), job, scheme).link_bytes;
  };
  EXPECT_DOUBLE_EQ(link_bytes(2), bytes);
  EXPECT_DOUBLE_EQ(link_bytes(3), 2 * 2.0 / 3 * bytes);
  EXPECT_DOUBLE_EQ(link_bytes(64), 2 * 63.0 / 64 * bytes);
  EXPECT_DOUBLE_EQ(link_bytes(4, Scheme::Ring), 2 * 31.0 / 32 * bytes);
}

TEST(PlanPrediction, NeverFasterThanTheLink) {
  for (const int machines : {2, 3, 8, 64}) {
    for (const int ranks : {1, 8}) {
      for (const double rate : {100e6, 1e9, 25e9, 400e9}) {
        for (const auto scheme : {Scheme::Hybrid, Scheme::Ring}) {
          auto job = some_job();
          job.machines = machines;
          job.ranks_per_machine = ranks;
          job.link_bits_per_s = rate;
          const auto prediction = predict(builtin_constants(), job, scheme);
          const double link_s = 8 * prediction.link_bytes / rate;
          EXPECT_GE(prediction.communication_s, link_s);
          EXPECT_GE(prediction.exposed_s, link_s - job.step_s * job.backward_share);
          EXPECT_GE(prediction.step_s, job.step_s);
        }
      }
    }
  }
}

TEST(PlanPrediction, SmallBucketsTakeOneTrip) {
  auto job = some_job();
  const auto small = cost_of(Scheme::Hybrid, builtin_constants(), job, 1000);
  EXPECT_EQ(small.messages, 3);
  EXPECT_EQ(small.link_bytes, 3000);
  const auto large = cost_of(Scheme::Hybrid, builtin_constants(), job, 200 << 10);
  EXPECT_EQ(large.messages, 8 * 2 * 3);
  EXPECT_GT(large.latency_s, small.latency_s);
}

// ---- Monotony

TEST(PlanPrediction, MoreCostsMore) {
  double before = 0;
  for (const double parameters : {1e6, 1e7, 1e8, 1e9, 1e10}) {
    const double now = step_s([&](Job& job) { job.parameters = parameters; });
    EXPECT_GT(now, before);
    before = now;
  }
  before = 0;
  for (const int machines : {1, 2, 3, 4, 16, 64, 256}) {
    const double now = step_s([&](Job& job) { job.machines = machines; });
    EXPECT_GE(now, before) << machines;
    before = now;
  }
  before = 0;
  for (const double gbit : {400.0, 100.0, 25.0, 10.0, 1.0, 0.1}) {
    const double now = step_s([&](Job& job) { job.link_bits_per_s = gbit * 1e9; });
    EXPECT_GE(now, before) << gbit;
    before = now;
  }
  before = 0;
  for (const double rtt_s : {0.0, 1e-5, 1e-4, 1e-2, 1.0}) {
    const double now = step_s([&](Job& job) { job.rtt_s = rtt_s; });
    EXPECT_GE(now, before) << rtt_s;
    before = now;
  }
}

TEST(PlanPrediction, MoreCoresHelp) {
  const double crowded = step_s([](Job& job) { job.cores_per_machine = 2; });
  const double even = step_s(some_job());
  const double spare = step_s([](Job& job) {
    job.cores_per_machine = 16;
    job.spare_cores_per_machine = 8;
  });
  EXPECT_GT(crowded, even);
  EXPECT_GT(even, spare);
}

TEST(PlanPrediction, FewerBytesHelp) {
  EXPECT_LT(step_s([](Job& job) { job.wire_element_bytes = 2; }), step_s(some_job()));
  EXPECT_LT(step_s([](Job& job) { job.element_bytes = 2; }),
            step_s([](Job& job) { job.wire_element_bytes = 2; }));
  // What is not smaller than the gradients changes nothing.
  EXPECT_EQ(step_s([](Job& job) { job.wire_element_bytes = 4; }), step_s(some_job()));
}

// A bucket whose predecessor is still under way when it is ready has its first chunk reduced in that time.
TEST(PlanOverlap, QueuedBucketsFollowWithoutAGap) {
  Cost cost{.latency_s = 0.5, .link_s = 2, .core_s = 1, .pieces = 2};
  const std::vector<PlannedBucket> ready_at_once{{1, 0}, {1, 0}};
  EXPECT_DOUBLE_EQ(simulate(ready_at_once, {cost, cost}, 0, 1).ended_s, 6);
  cost.queued = true;
  EXPECT_DOUBLE_EQ(simulate(ready_at_once, {cost, cost}, 0, 1).ended_s, 5);
  // Not if the link has been idle.
  EXPECT_DOUBLE_EQ(simulate({{1, 0}, {1, 10}}, {cost, cost}, 10, 0).ended_s, 13);
}

TEST(PlanPrediction, BestBucketIsNotWorse) {
  for (const double mib : {0.1, 1.0, 25.0, 400.0}) {
    for (const double rtt_s : {0.0, 1e-4, 1e-2}) {
      auto job = some_job();
      job.bucket_bytes = mib * kMiB;
      job.rtt_s = rtt_s;
      auto best = job;
      best.bucket_bytes = best_bucket_bytes(builtin_constants(), job);
      EXPECT_LE(step_s(best), step_s(job));
    }
  }
  // Long trips want few buckets, unless the next bucket is on its way meanwhile.
  auto far = some_job();
  far.rtt_s = 1;
  EXPECT_GT(best_bucket_bytes(builtin_constants(), far, Scheme::Ring), 25 * kMiB);
}

TEST(PlanPrediction, ReliefsAreSorted) {
  const auto found = reliefs(builtin_constants(), some_job());
  ASSERT_FALSE(found.empty());
  for (size_t i = 1; i < found.size(); ++i) EXPECT_LE(found[i - 1].step_s, found[i].step_s);
  for (const auto& relief : found) EXPECT_LE(relief.step_s, step_s(some_job()) + 1e-12) << relief.what;
  auto slow = some_job();
  slow.link_bits_per_s = 100e6;
  EXPECT_THAT(reliefs(builtin_constants(), slow).front().what, HasSubstr("bandwidth"));
}

// ---- Memory and limits

TEST(PlanMemory, States) {
  Job job{.parameters = 1e9};
  job.optimizer = Optimizer::Sgd;
  EXPECT_EQ(memory_of(job).optimizer_bytes, 0);
  job.optimizer = Optimizer::Momentum;
  EXPECT_EQ(memory_of(job).optimizer_bytes, 4e9);
  job.optimizer = Optimizer::Adam;
  EXPECT_EQ(memory_of(job).optimizer_bytes, 8e9);
  job.element_bytes = 2;
  EXPECT_EQ(memory_of(job).optimizer_bytes, 4e9);
  EXPECT_EQ(memory_of(job).parameters_bytes + memory_of(job).gradients_bytes, 4e9);
  EXPECT_EQ(memory_of(job).connections_bytes, 0);
  job.machines = 4;
  EXPECT_GT(memory_of(job).connections_bytes, 0);
  EXPECT_GE(memory_of(job).total_bytes(), 8e9);
}

std::string limits_text(const Job& job) {
  std::string text;
  for (const auto& limit : limits_reached(job, predict(builtin_constants(), job))) {
    EXPECT_FALSE(limit.hint.empty());
    text += limit.what + "\n";
  }
  return text;
}

TEST(PlanLimits, AreNamed) {
  EXPECT_EQ(limits_text(some_job()), "");
  auto crowded = some_job();
  crowded.ranks_per_machine = 257;
  EXPECT_THAT(limits_text(crowded), HasSubstr("at most 256 ranks"));
  auto many = some_job();
  many.machines = 512;
  EXPECT_THAT(limits_text(many), HasSubstr("one store"));
  EXPECT_THAT(limits_text(many), HasSubstr("messages between machines"));
  EXPECT_THAT(limits_text(many), HasSubstr("to one link at once"));
  many.machines = 10'000;
  EXPECT_THAT(limits_text(many), HasSubstr("open files"));
  EXPECT_THAT(limits_text(many), HasSubstr("at most 4096 machines"));
}

TEST(PlanLimits, Rendezvous) {
  auto job = some_job();
  job.machines = 2;  // of 8 ranks
  EXPECT_EQ(rendezvous_of(job).reads, 16 * 15);
  EXPECT_EQ(rendezvous_of(job).bytes, 489600);  // counted with a store that counts
  job.machines = 1;
  EXPECT_EQ(rendezvous_of(job).reads, 0);
}

// ---- The fit

// The rows that a machine with these constants would give.
BenchRun made_up_run(const Constants& truth, int cores, const std::vector<int>& worlds) {
  BenchRun run{.cpu = "a CPU", .cores = cores};
  for (const int world : worlds) {
    const double turns = std::max(1.0, static_cast<double>(world) / cores);
    for (const double bytes : {1024.0, 0x1p27}) {
      const bool small = bytes < 4096;
      const double rate =
          std::min(std::min(world, cores) * truth.core_bytes_per_s, truth.machine_bytes_per_s);
      const double call_s = truth.local_call_s + truth.crowded_call_s * std::max(0, world - cores);
      run.rows.push_back(
          {"all_reduce", "shm", "registered", world, bytes, small ? call_s : 2 * world * bytes / rate});
      run.rows.push_back({"all_reduce", "shm", "plain", world, bytes, 1});
      const double steps = 2 * (world - 1);
      run.rows.push_back(
          {"all_reduce", "gloo", "plain", world, bytes,
           turns * steps * (truth.trip_s + (small ? 0 : bytes / world * truth.network_s_per_byte))});
      run.rows.push_back(
          {"all_to_all_single", "gloo", "plain", world, bytes, turns * (world - 1) * truth.message_s});
    }
  }
  return run;
}

TEST(PlanFit, FindsTheConstants) {
  const Constants truth{.core_bytes_per_s = 20e9,
                        .machine_bytes_per_s = 70e9,
                        .local_call_s = 1e-6,
                        .crowded_call_s = 5e-6,
                        .trip_s = 80e-6,
                        .message_s = 20e-6,
                        .network_s_per_byte = 0.5e-9};
  const auto found = fit(made_up_run(truth, 4, {2, 4, 8}));
  EXPECT_NEAR(found.core_bytes_per_s / truth.core_bytes_per_s, 1, 1e-9);
  EXPECT_NEAR(found.machine_bytes_per_s / truth.machine_bytes_per_s, 1, 1e-9);
  EXPECT_NEAR(found.local_call_s / truth.local_call_s, 1, 1e-9);
  EXPECT_NEAR(found.crowded_call_s / truth.crowded_call_s, 1, 1e-9);
  EXPECT_NEAR(found.trip_s / truth.trip_s, 1, 1e-9);
  EXPECT_NEAR(found.message_s / truth.message_s, 1, 1e-9);
  EXPECT_NEAR(found.network_s_per_byte / truth.network_s_per_byte, 1, 1e-9);
  EXPECT_EQ(found.source, "measured on 4 cores of a CPU");
}

TEST(PlanFit, OneWorldIsEnough) {
  const auto found = fit(made_up_run(builtin_constants(), 2, {2}));
  EXPECT_GT(found.message_s, 0);
  EXPECT_LE(found.message_s, found.trip_s);
  EXPECT_EQ(found.crowded_call_s, builtin_constants().crowded_call_s);
}

TEST(PlanFit, NamesWhatIsMissing) {
  const auto whole = made_up_run(builtin_constants(), 2, {2, 4});
  const auto without = [&](auto&& left_out) {
    auto run = whole;
    std::erase_if(run.rows, left_out);
    try {
      fit(run);
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("lockstep bench --world"));
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_THAT(without([](const BenchRow&) { return true; }), HasSubstr("all_reduce over shared memory"));
  EXPECT_THAT(without([](const BenchRow& row) { return row.backend == "gloo"; }),
              HasSubstr("over Gloo of 1 KiB"));
  EXPECT_THAT(without([](const BenchRow& row) { return row.collective != "all_reduce"; }),
              HasSubstr("all_to_all_single"));
  EXPECT_THAT(without([](const BenchRow& row) { return row.bytes > 4096 && row.backend == "shm"; }),
              HasSubstr("too large for caches"));
  EXPECT_THAT(without([](const BenchRow& row) { return row.bytes > 4096 && row.backend == "gloo"; }),
              HasSubstr("over Gloo with buffers"));
}

// ---- The file

std::string row_json(const std::string& p50_us) {
  return fmt::format(
      R"({{"world": 2, "collective": "all_reduce", "size": 1024, "bytes": 1024, "dtype": "float",
    "op": "sum", "backend": "shm", "memory": "registered", "data": "ok", "p50_us": {}}})",
      p50_us);
}
std::string file_json(const std::string& rows) {
  return fmt::format(R"({{"machine": {{"cpu": "a CPU", "cores": 4, "usable_cores": 4}}, "rows": [{}]}})",
                     rows);
}

std::string refusal(const std::string& text) {
  try {
    parse_bench(text, "rows.json");
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--constants rows.json cannot be used"));
    EXPECT_THAT(error.what(), HasSubstr("hint: "));
    return error.what();
  }
  return "accepted";
}

TEST(PlanFile, Rows) {
  const auto run = parse_bench(file_json(row_json("0.25")), "rows.json");
  EXPECT_EQ(run.cpu, "a CPU");
  EXPECT_EQ(run.cores, 4);
  ASSERT_EQ(run.rows.size(), 1u);
  EXPECT_EQ(run.rows[0].seconds, 0.25e-6);
  EXPECT_EQ(run.rows[0].bytes, 1024);
}

TEST(PlanFile, OtherRowsAreLeftOut) {
  std::string wrong = row_json("0.25"), bf16 = wrong,
              refused = R"({"dtype": "float", "op": "sum", "data": "refused"})";
  wrong.replace(wrong.find("\"ok\""), 4, "\"WRONG\"");
  bf16.replace(bf16.find("\"float\""), 7, "\"bfloat16\"");
  EXPECT_TRUE(parse_bench(file_json(wrong + "," + bf16 + "," + refused), "rows.json").rows.empty());
}

TEST(PlanFile, DamagedAnywhere) {
  const auto whole = file_json(row_json("0.25"));
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT(refusal(whole.substr(0, length)), HasSubstr("it is not JSON")) << length;
  }
  EXPECT_EQ(refusal(whole), "accepted");
}

TEST(PlanFile, OtherContents) {
  for (const auto* text : {"[]", "1", "{}", R"({"rows": []})", R"({"machine": {}})"}) {
    EXPECT_THAT(refusal(text), HasSubstr("not the output of lockstep bench")) << text;
  }
  for (const auto* text : {R"({"machine": 1, "rows": []})", R"({"machine": {"cpu": "x"}, "rows": []})",
                           R"({"machine": {"cpu": "x", "usable_cores": 0}, "rows": []})",
                           R"({"machine": {"cpu": "x", "usable_cores": 2}, "rows": [1]})",
                           R"({"machine": {"cpu": "x", "usable_cores": 2}, "rows": [{}]})"}) {
    EXPECT_THAT(refusal(text), HasSubstr("damaged")) << text;
  }
  for (const auto* time : {"0", "-1", "null", "\"1\"", "1e400", "[]"}) {
    EXPECT_NE(refusal(file_json(row_json(time))), "accepted") << time;
  }
}

TEST(PlanFile, Unreadable) {
  EXPECT_THROW(read_bench("/no/such/file"), UsageError);
  EXPECT_THROW(read_bench("/"), UsageError);
  const auto path = std::filesystem::temp_directory_path() / fmt::format("lockstep-plan-{}", ::getpid());
  std::ofstream(path) << file_json(row_json("1"));
  EXPECT_EQ(read_bench(path).rows.size(), 1u);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lockstep::plan
