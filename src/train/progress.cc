// Progress: decides when to draw. progress_line.h makes the text, screen.h writes it.
#include <fmt/format.h>
#include <optional>

#include <ATen/ATen.h>

#include <lockstep/error.h>
#include <lockstep/progress.h>

#include "base/error_text.h"
#include "train/group_of.h"
#include "train/progress_line.h"
#include "train/screen.h"

namespace lockstep {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto kBetweenDraws = 100ms;
constexpr auto kBetweenLines = 1s, kLongestSilence = 10s;  // on output that is not a terminal
// A dropped bar is soon drawn again; the last line and the lines of print() are not.
constexpr auto kPatience = 0ms, kLastPatience = 1000ms;

constexpr std::string_view kTakeBack = "\r\033[K";

[[noreturn]] void refuse(const std::string& evidence, const std::string& hint) {
  throw UsageError(base::compose({.what = "Progress cannot show this", .evidence = evidence, .hint = hint}));
}

}  // namespace

struct Progress::Impl {
  Impl(const ProcessGroup& group, ProgressOptions given)
      : options(std::move(given)), world_size(group.world_size()) {
    if (options.steps < 0)
      refuse(fmt::format("there are {} steps", options.steps), "pass 0 if the number is not known");
    if (group.rank() != 0) return;
    screen.emplace(options.out);
    state.label = train::without_controls(options.label);
    state.unit = train::without_controls(options.unit);
    state.steps = options.steps;
    began = last_shown = now();
  }

  // On all ranks, so that wrong arguments fail everywhere and not on rank 0 only.
  void check_step(int64_t samples) const {
    if (finished) refuse("it is already finished", "make a new one for each epoch");
    if (samples < 0) refuse(fmt::format("a step had {} samples", samples), "pass the size of the batch");
  }

  Clock::time_point now() const { return options.clock ? options.clock() : Clock::now(); }

  void count(int64_t samples) {
    ++state.done;
    state.samples += static_cast<double>(samples) * world_size;
    const auto time = now();
    if (screen->redraws() ? time - last_shown >= kBetweenDraws || state.done == 1 : line_is_due(time)) {
      show(time, kPatience);
    }
  }

  bool line_is_due(Clock::time_point time) const {
    const auto since = time - last_shown;
    if (since >= kLongestSilence) return true;
    // finish() prints the line of the last tenth.
    return since >= kBetweenLines && tenth() > last_tenth && state.done != state.steps;
  }

  int64_t tenth() const { return train::parts_done(state, 10); }

  void show(Clock::time_point time, std::chrono::milliseconds patience) {
    if (loss.defined()) state.loss = loss.item<double>();
    loss.reset();
    state.elapsed = std::chrono::duration<double>(time - began).count();
    last_shown = time;
    last_tenth = tenth();
    const auto end = state.finished || !screen->redraws() ? "\n" : "";
    if (screen->redraws()) {
      // Leaves the last column free, because some terminals wrap after writing to it.
      const auto line = train::bar_line(state, screen->width() - 1, screen->colours());
      const bool drawn = screen->write(fmt::format("{}{}{}", kTakeBack, line, end), patience);
      bar_is_there = !state.finished && (drawn || bar_is_there);
    } else {
      screen->write(train::plain_line(state) + end, patience);
    }
  }

  void clear() {
    if (bar_is_there) screen->write(kTakeBack, kLastPatience);
    bar_is_there = false;
  }

  const ProgressOptions options;
  const int world_size;
  bool finished = false;

  // The rest is used on rank 0 only.
  std::optional<train::Screen> screen;
  train::ProgressState state;
  at::Tensor loss;  // the latest loss, if it was passed as a tensor and has not been shown
  Clock::time_point began, last_shown;
  int64_t last_tenth = 0;
  bool bar_is_there = false;
};

Progress::Progress(const std::shared_ptr<ProcessGroup>& group, ProgressOptions options)
    : Progress(train::group_of(group, "Progress"), std::move(options)) {}

Progress::Progress(const ProcessGroup& group, ProgressOptions options)
    : impl_(std::make_unique<Impl>(group, std::move(options))) {}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {
    // A loss that cannot be read is reported where the loop uses it. Here only the line has to be ended.
    if (impl_->bar_is_there) impl_->screen->write("\n", kLastPatience);
  }
}

void Progress::step() {
  impl_->check_step(0);
  if (impl_->screen) impl_->count(0);
}

void Progress::step(double loss, int64_t samples) {
  impl_->check_step(samples);
  if (!impl_->screen) return;
  impl_->state.loss = loss;
  impl_->loss.reset();
  impl_->count(samples);
}

void Progress::step(const at::Tensor& loss, int64_t samples) {
  impl_->check_step(samples);
  if (loss.defined() && (loss.numel() != 1 || loss.is_complex())) {
    refuse(fmt::format("the loss has {} {} elements", loss.numel(), c10::toString(loss.scalar_type())),
           "pass a single number, e.g. a mean()");
  }
  if (!impl_->screen) return;
  // Detached, so that its graph is not kept alive until the next step.
  if (loss.defined()) impl_->loss = loss.detach();
  impl_->count(samples);
}

void Progress::print(std::string_view line) {
  if (!impl_->screen) return;
  impl_->clear();
  impl_->screen->write(fmt::format("{}\n", line), kLastPatience);
  if (impl_->screen->redraws() && !impl_->finished && impl_->state.done > 0)
    impl_->show(impl_->now(), kPatience);
}

void Progress::clear() {
  if (impl_->screen) impl_->clear();
}

void Progress::finish() {
  if (impl_->finished) return;
  impl_->finished = true;
  if (!impl_->screen) return;
  impl_->state.finished = true;
  impl_->show(impl_->now(), kLastPatience);
}

}  // namespace lockstep
