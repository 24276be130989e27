// A progress bar on rank 0's terminal, and plain lines where the output is not a terminal.
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
  // How many steps there will be; 0: not known, so no bar and no time left.
  int64_t steps = 0;
  // What stands first: "epoch 1/3".
  std::string label = {};
  // What the samples given to step() are.
  std::string unit = "samples";
  // A file descriptor, which stays the caller's: stderr, so that stdout is left to results.
  int out = 2;
  // Another clock than the steady one, for tests.
  std::function<std::chrono::steady_clock::time_point()> clock = {};
};

// How far the loop is, the latest loss, the rates since the beginning, the time left:
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
// On a terminal one line that is drawn again, at most ten times a second, and that leaves out what has no
// room. Elsewhere (a file, a pipe, the launcher; TERM=dumb) a line for each tenth, but at most one a second
// and at least one every ten seconds in which there was a step. Colour unless NO_COLOR is set. On other ranks
// than 0 nothing. Output that would have to wait for its reader is left out, and after an error of the output
// there is none: training goes on.
//
// Does not communicate. Not thread-safe.
class Progress {
 public:
  explicit Progress(const std::shared_ptr<ProcessGroup>& group = default_group(),
                    ProgressOptions options = {});
  explicit Progress(const ProcessGroup& group, ProgressOptions options = {});
  // As finish(), but never throws; so the terminal is in order after an exception as well.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // A step is done. `samples` are this rank's; the rate that is shown is for all ranks, taking the others to
  // have as many.
  void step();
  void step(double loss, int64_t samples = 0);
  // One element, or undefined for none. A device is waited for only when the line is drawn.
  void step(const at::Tensor& loss, int64_t samples = 0);

  // A line of its own, above the bar.
  void print(std::string_view line);
  // Takes the bar away until it is next drawn, for lines that others print.
  void clear();
  // The last line, with the time that it took. Afterwards a step() is a UsageError; a second finish() does
  // nothing.
  void finish();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
