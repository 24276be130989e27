// A progress bar on rank 0's terminal, or plain lines if the output is not a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

namespace lockstep {

struct ProgressOptions {
  // The total number of steps; 0: unknown, so neither a bar nor a remaining time is shown.
  int64_t steps = 0;
  // The text at the start of the line: "epoch 1/3".
  std::string label = {};
  // The unit of the `samples` passed to step().
  std::string unit = "samples";
  // A file descriptor, which the caller owns. The default is stderr, which leaves stdout to the program's
  // results.
  int out = 2;
  // Replaces the steady clock, for tests.
  std::function<std::chrono::steady_clock::time_point()> clock = {};
};

// Shows the number of steps, the latest loss, the average speed and the remaining time:
//
//   epoch 1/3   42%  [====>------]   420/1000  loss 0.1234   1.23k samples/s  ETA 0:12
//
//   Progress bar(group, {.steps = steps, .label = "epoch 1/3"});
//   for (auto& batch : *loader) {
//     …
//     bar.step(loss, batch.data.size(0));
//   }
//   bar.finish();
//
// On a terminal, this is one line, redrawn at most ten times a second; parts that do not fit are left out.
// Elsewhere (a file, a pipe, the launcher, TERM=dumb), it prints a line for every tenth of the steps, but at
// most one per second, and at least one every ten seconds while steps are made. It uses colour unless
// NO_COLOR is set. It prints nothing on ranks other than 0.
//
// step() never waits for the reader of the output: what does not fit is dropped. print(), clear() and
// finish() wait for up to a second. After a write error nothing more is printed, and the training continues.
//
// Does not communicate. Not thread-safe. Throws UsageError for negative numbers and for a null group.
class Progress {
 public:
  explicit Progress(const std::shared_ptr<ProcessGroup>& group = default_group(),
                    ProgressOptions options = {});
  explicit Progress(const ProcessGroup& group, ProgressOptions options = {});
  // Calls finish(). Does not throw, and leaves the terminal in order after an exception.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Counts a step. `samples` are those of this rank. The rate shown is that of all ranks, assuming that each
  // has the same number. Throws UsageError after finish().
  void step();
  void step(double loss, int64_t samples = 0);
  // The loss must have one element or be undefined; otherwise UsageError. Its device is synchronized only
  // when the line is drawn.
  void step(const at::Tensor& loss, int64_t samples = 0);

  // Prints a line above the bar.
  void print(std::string_view line);
  // Removes the bar until it is next drawn, so that the program can print lines of its own.
  void clear();
  // Prints the last line, with the elapsed time. step() throws UsageError afterwards; a second finish() does
  // nothing.
  void finish();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
