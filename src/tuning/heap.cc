#include "tuning/heap.h"

#include <array>
#include <malloc.h>

#include "base/env.h"
#include "tuning/plan.h"

namespace lockstep::tuning {

namespace {

struct Setting {
  int option;  // of mallopt(3)
  int value;
  const char* variable;
  const char* text;
  // With any of these, the user has made this choice: variables, and names in GLIBC_TUNABLES.
  std::array<const char*, 2> variables;
  std::array<const char*, 2> tunables;
};

// glibc allocates large blocks with mmap and unmaps them when they are freed, and it returns free memory at
// the end of the heap to the kernel. Either way the next step faults the same memory in again, page by page,
// zeroed by the kernel. mmap is disabled because glibc documents a higher threshold only up to 32 MiB.
// Measurements: docs/tuning.md.
constexpr std::array kSettings = {
    Setting{M_MMAP_MAX,
            0,
            "MALLOC_MMAP_MAX_",
            "0",
            {"MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_"},
            {"glibc.malloc.mmap_max=", "glibc.malloc.mmap_threshold="}},
    // -1 as size_t is larger than any amount of free memory at the end of the heap.
    Setting{M_TRIM_THRESHOLD,
            -1,
            "MALLOC_TRIM_THRESHOLD_",
            "18446744073709551615",
            {"MALLOC_TRIM_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"},
            {"glibc.malloc.trim_threshold=", "glibc.malloc.trim_threshold="}},
};

// Transparent huge pages for the heap, if the kernel leaves the choice to programs (madvise). Only possible
// at the start of a process: mallopt(3) has no such option.
constexpr const char* kHugePages = "glibc.malloc.hugetlb=";

std::string user_tunables() { return base::env_string("GLIBC_TUNABLES").value_or(""); }

bool chosen_by_user(const Setting& setting) {
  const auto tunables = user_tunables();
  for (const char* name : setting.variables) {
    if (base::env_string(name)) return true;
  }
  for (const char* name : setting.tunables) {
    if (tunables.find(name) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> heap_environment() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const auto& setting : kSettings) {
    if (!chosen_by_user(setting)) variables.emplace_back(setting.variable, setting.text);
  }
  auto tunables = user_tunables();
  if (tunables.find(kHugePages) == std::string::npos) {
    if (!tunables.empty()) tunables += ':';
    variables.emplace_back("GLIBC_TUNABLES", tunables + kHugePages + "1");
  }
  return variables;
}

void keep_heap() {
  for (const auto& setting : kSettings) {
    if (!chosen_by_user(setting)) ::mallopt(setting.option, setting.value);
  }
}

}  // namespace lockstep::tuning
