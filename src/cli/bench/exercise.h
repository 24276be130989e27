// The collectives of one group as `lockstep bench` calls them, each with its tensors and with data that
// verifies the result.
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

// The first element with a wrong value.
struct WrongElement {
  int64_t index = 0;
  double got = 0, wanted = 0;
};

// All ranks must create and use their exercises in the same order. Not thread-safe.
struct Exercise {
  int64_t bytes = 0;
  // 2 for send_recv: one call sends there and back.
  double calls_in_one = 1;
  // Writes known inputs, and outputs that are certainly wrong.
  std::function<void()> fill;
  // Writes zeros everywhere, for the timed calls: they repeatedly work in place, and every operation maps
  // zeros to zeros. Other values would grow, overflow or become denormal, which is slow. Writing also faults
  // the pages in.
  std::function<void()> settle;
  std::function<void()> call;
  // Call it after fill() and one call(). Checks every element that this rank has received.
  std::function<std::optional<WrongElement>()> check;
};

struct ExerciseOptions {
  Collective collective{};
  int64_t size = 0;
  Dtype dtype{};
  std::string op;
  bool registered = false;  // whether the tensors come from group->empty()
};
Exercise make_exercise(std::shared_ptr<ProcessGroup> group, const ExerciseOptions& options);

}  // namespace lockstep::bench
