// demo.html and the table on the terminal: figures that can be recomputed, and input that is not a run.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include "demo_report/page.h"
#include "demo_report/run.h"
#include "demo_report/summary.h"
#include "demo_report/svg.h"

namespace demo {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Run run_with(int world_size, int threads, double seconds) {
  Run run{.command = "fashion_mnist --data <a&b>",
          .backend = world_size == 1 ? "single" : "shm",
          .libtorch = "1.13.1",
          .world_size = world_size,
          .threads = threads,
          .parameters = 206922,
          .batch = 100,
          .samples = 10000,
          .epochs = {{.seconds = seconds, .loss = 0.75, .accuracy = 0.875},
                     {.seconds = seconds, .loss = 0.5, .accuracy = 0.9}},
          .losses = std::vector<double>(200, 1.0),
          .cpu_seconds = 2 * seconds,
          .replicas = std::vector<std::string>(world_size, "00ff00ff00ff00ff")};
  if (world_size > 1) {
    run.total_communication = 0.2 * seconds;
    run.total_exposed = 0.1 * seconds;
    run.typical_pass = {.backward = 0.004, .communication = 0.002, .exposed = 0.001};
    run.typical_pass.buckets = {
        {.bytes = 808328,
         .parameters = {"fc2.weight", "fc1.weight"},
         .ready = 0.0005,
         .launched = 0.001,
         .finished = 0.002},
        {.bytes = 800, .parameters = {"conv1.bias"}, .ready = 0.003, .launched = 0.003, .finished = 0.004}};
  }
  return run;
}

const Machine kMachine{.cpu = "A & B", .kernel = "Linux", .date = "today", .cores = 2};

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(DemoSummary, ComparesWithTheFirstRun) {
  const auto summary = summary_of({run_with(1, 1, 10), run_with(2, 1, 5), run_with(1, 2, 8)});
  EXPECT_THAT(summary, HasSubstr("2.00x"));
  EXPECT_THAT(summary, HasSubstr("1.25x"));
  EXPECT_THAT(summary, HasSubstr("2,000"));  // images a second with two processes
  EXPECT_THAT(summary, HasSubstr("5.0 %"));  // waiting: 0.5 s of 10
  EXPECT_THAT(summary, HasSubstr("replicas identical: yes"));
}

TEST(DemoSummary, ReplicasThatDifferAreSaidToDiffer) {
  auto run = run_with(2, 1, 5);
  run.replicas[1] = "1111111111111111";
  EXPECT_THAT(summary_of({run_with(1, 1, 10), run}), HasSubstr("replicas identical: NO"));
  EXPECT_THAT(page_of({run_with(1, 1, 10), run}, kMachine), HasSubstr(">NO<"));
}

TEST(DemoSummary, GivesNoSpeedUpWhenOtherProgramsHadTheCores) {
  for (const size_t which : {0, 2}) {
    std::vector runs{run_with(1, 1, 10), run_with(2, 1, 5), run_with(1, 2, 8)};
    EXPECT_THAT(summary_of(runs), Not(HasSubstr("NOTE")));
    EXPECT_THAT(page_of(runs, kMachine), Not(HasSubstr("Other programs")));
    runs[which].cpu_seconds = runs[which].seconds() / 2;
    EXPECT_THAT(summary_of(runs), HasSubstr("had 0.50 cores"));
    EXPECT_THAT(summary_of(runs), Not(HasSubstr("2.00x")));
    EXPECT_THAT(page_of(runs, kMachine), HasSubstr("Other programs were running"));
    EXPECT_THAT(page_of(runs, kMachine), Not(HasSubstr("2.00×")));
  }
}

TEST(DemoPage, NeedsNothingFromElsewhere) {
  const auto page = page_of({run_with(1, 1, 10), run_with(2, 1, 5)}, kMachine);
  for (const char* part : {"http:", "https:", "<script", "<link", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
}

TEST(DemoPage, TextFromOutsideIsEscaped) {
  const auto page = page_of({run_with(1, 1, 10), run_with(2, 1, 5)}, kMachine);
  EXPECT_THAT(page, HasSubstr("--data &lt;a&amp;b&gt;"));
  EXPECT_THAT(page, HasSubstr("A &amp; B"));
  EXPECT_THAT(page, Not(HasSubstr("<a&b>")));
}

TEST(DemoPage, EveryFigureIsDescribedAndDrawnForBothWidths) {
  const auto page = page_of({run_with(1, 1, 10), run_with(2, 1, 5), run_with(1, 2, 8)}, kMachine);
  EXPECT_EQ(count(page, "<svg class=\"wide\""), 3U);
  EXPECT_EQ(count(page, "<svg class=\"narrow\""), 3U);
  EXPECT_EQ(count(page, "role=\"img\" aria-label=\""), 6U);
  EXPECT_THAT(page, HasSubstr("bucket 1, 808 kB"));
  EXPECT_THAT(page, HasSubstr("2.00×"));
}

TEST(DemoPage, OneRunAloneAndLossesThatAreNotNumbersAreDrawnToo) {
  auto run = run_with(1, 1, 10);
  run.losses[3] = std::numeric_limits<double>::quiet_NaN();
  run.losses[150] = std::numeric_limits<double>::infinity();
  const auto page = page_of({run}, kMachine);
  const auto path = page.find("<path class=\"curve one\" d=\"M4");
  ASSERT_NE(path, std::string::npos);
  const auto drawn = page.substr(path, page.find("/>", path) - path);
  EXPECT_THAT(drawn, Not(HasSubstr("nan")));
  EXPECT_THAT(drawn, Not(HasSubstr("inf")));
}

TEST(Ticks, AreRoundAndNotTooMany) {
  EXPECT_DOUBLE_EQ(tick_distance(1407, 8), 200);
  EXPECT_DOUBLE_EQ(tick_distance(1, 5), 0.2);
  EXPECT_DOUBLE_EQ(tick_distance(0.9, 5), 0.2);
  EXPECT_DOUBLE_EQ(tick_distance(0, 5), 1);
  EXPECT_DOUBLE_EQ(tick_distance(std::numeric_limits<double>::quiet_NaN(), 5), 1);
  for (double end = 1e-4; end < 1e6; end *= 1.37) {
    EXPECT_LE(end / tick_distance(end, 6), 6.001) << end;
    EXPECT_GE(end / tick_distance(end, 6), 2) << end;
  }
}

TEST(ReadRun, ALossThatIsNotANumberIsReadAsSuch) {
  const auto path = std::filesystem::temp_directory_path() / ("demo_report_nan." + std::to_string(getpid()));
  std::ofstream(path)
      << R"({"command": "", "backend": "", "libtorch": "", "snapshot": "", "world_size": 1, "threads": 1,
             "parameters": 1, "batch": 1, "samples": 1, "cpu_seconds": 1, "losses": [1, null],
             "epochs": [{"number": 1, "seconds": 2, "loss": null, "accuracy": 0.1}], "replicas": ["a"],
             "stats": {"total_communication": 0, "total_exposed": 0},
             "typical_pass": {"backward": 0, "communication": 0, "exposed": 0, "buckets": []}})";
  const auto run = read_run(path);
  std::filesystem::remove(path);
  EXPECT_EQ(run.losses.at(0), 1);
  EXPECT_TRUE(std::isnan(run.losses.at(1)));
  EXPECT_TRUE(std::isnan(run.epochs.at(0).loss));
}

TEST(ReadRun, RefusesWhatIsNoRunByName) {
  const auto path = std::filesystem::temp_directory_path() / ("demo_report_test." + std::to_string(getpid()));
  const auto refusal = [&](const std::string& content) -> std::string {
    std::ofstream(path) << content;
    try {
      read_run(path);
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
      return error.what();
    }
    return "read";
  };
  EXPECT_THAT(refusal(""), HasSubstr("not a run"));
  EXPECT_THAT(refusal("{}"), HasSubstr("not a run"));
  EXPECT_THAT(refusal("[1, 2]"), HasSubstr("not a run"));
  EXPECT_THAT(
      refusal(R"({"command": "", "backend": "", "libtorch": "", "snapshot": "", "world_size": 1, "threads": 1,
                  "parameters": 1, "batch": 1, "samples": 1, "cpu_seconds": 1, "losses": [], "epochs": [], "replicas": [],
                  "stats": {"total_communication": 0, "total_exposed": 0},
                  "typical_pass": {"backward": 0, "communication": 0, "exposed": 0, "buckets": []}})"),
      HasSubstr("trained nothing"));
  std::filesystem::remove(path);
  EXPECT_THROW(read_run(path), std::runtime_error);
}

}  // namespace
}  // namespace demo
