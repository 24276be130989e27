// The collectives of one group as `lockstep bench` calls them, each with its tensors and the data that shows
// whether it did its work.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <lockstep/process_group.h>

#include "cli/bench/options.h"
#include "cli/bench/rules.h"

namespace lockstep::bench {

// The first element that is not what it should be.
struct WrongElement {
  int64_t index = 0;
  double got = 0, wanted = 0;
};

// Every rank must make and use its exercises in the same order as the others. Not thread-safe.
struct Exercise {
  int64_t bytes = 0;
  // A call of send_recv is there and back, and counts as two.
  double calls_in_one = 1;
  // Known inputs, and outputs that cannot be taken for right.
  std::function<void()> fill;
  // Zeros everywhere, for the calls that are timed: they work in place, over and over, and zero is what every
  // operation makes of zeros. Other values would grow, overflow or become denormal, which is slow. The memory
  // is written before, so that its pages exist; their bytes move as any others do.
  std::function<void()> settle;
  std::function<void()> call;
  // After fill() and one call(). Looks at every element that this rank has received.
  std::function<std::optional<WrongElement>()> check;
};

struct ExerciseOptions {
  Collective collective{};
  int64_t size = 0;
  Dtype dtype{};
  std::string op;
  bool registered = false;  // tensors from group->empty()
};
Exercise make_exercise(std::shared_ptr<ProcessGroup> group, const ExerciseOptions& options);

}  // namespace lockstep::bench
