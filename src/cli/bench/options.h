// The command line of `lockstep bench`, which its peers (bench/collectives) accept as well. Without LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cli/bench/rules.h"

namespace lockstep::bench {

struct Dtype {
  const char* name;
  int bytes;
};
inline constexpr std::array<Dtype, 9> kDtypes{{
    {"float", 4},
    {"double", 8},
    {"half", 2},
    {"bfloat16", 2},
    {"int8", 1},
    {"uint8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
}};
inline constexpr std::array kOperations{"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};

struct Options {
  std::vector<int> worlds{2};
  std::vector<std::string> backends{"shm", "gloo"};
  bool backends_named = false;  // the user has named them: a missing one is an error
  std::vector<Collective> collectives;
  std::vector<int64_t> sizes;  // ascending
  std::vector<Dtype> dtypes{kDtypes[0]};
  std::string op = "sum";
  std::vector<std::string> memories{"registered", "plain"};
  std::optional<int> iterations;  // samples of each row; by default as many as fit into `seconds`
  double seconds = 0.2;
  int warmup = 5;
  std::string json;  // path; "-": stdout, instead of the table; empty: no JSON
  bool quiet = false;
};

// One measurement, which is made for all variants (backend, memory, dtype) in turn.
struct RowPlan {
  Collective collective;
  int64_t size;  // as requested; 0 for a barrier
};
std::vector<RowPlan> plan_rows(const Options& options);

// The shortest exact form: "8", "1K", "25M", "1000".
std::string size_text(int64_t bytes);

struct HelpText {
  std::string text;
};
// Throws UsageError for invalid arguments. `program` is the name in the help text.
std::variant<Options, HelpText> parse_options(const std::vector<std::string>& words,
                                              const std::string& program = "lockstep bench");

}  // namespace lockstep::bench
