#include "launch/limits.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "launch/control.h"
#include "tuning/topology.h"

namespace lockstep::launch {

namespace {

using base::compose;

// stdout, stderr and note. Starting a worker takes four more, which are part of kFilesBesides.
constexpr rlim_t kFilesPerWorker = 3;
constexpr rlim_t kFilesBesides = 64;

}  // namespace

int available_cores() { return tuning::read_topology(tuning::affinity_of()).usable_cores(); }

int available_gpus() {
  int devices = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia") && name.size() > 6 &&
        std::all_of(name.begin() + 6, name.end(), [](unsigned char c) { return std::isdigit(c); })) {
      ++devices;
    }
  }
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::string list = visible;
    const auto entries = list.empty() ? 0 : std::count(list.begin(), list.end(), ',') + 1;
    return list.starts_with('-') ? 0 : std::min(devices, static_cast<int>(entries));
  }
  return devices;
}

int parse_nproc(const std::string& text) {
  if (text == "cpu") return available_cores();
  if (text == "auto" || text == "gpu") {
    const int gpus = available_gpus();
    if (gpus > 0) return gpus;
    if (text == "auto") return available_cores();
    throw UsageError(
        compose({.what = "--nproc-per-node gpu",
                 .evidence = "there is no GPU that this process may use",
                 .hint = "--nproc-per-node auto uses the GPUs if there are any, otherwise the cores"}));
  }
  const auto number = base::parse_int(text);
  if (!number || *number < 1 || *number > kMostWorkersPerNode) {
    throw UsageError(compose(
        {.what = fmt::format("--nproc-per-node \"{}\" is invalid", text),
         .evidence =
             fmt::format("it must be a number from 1 to {}, or auto, cpu or gpu", kMostWorkersPerNode),
         .hint = fmt::format("this machine has {} core(s); --nproc-per-node auto starts one worker per core",
                             available_cores())}));
  }
  return static_cast<int>(*number);
}

void make_room_for(int nproc, int nnodes) {
  const auto workers = static_cast<rlim_t>(nproc);
  rlimit processes{};
  // This limit does not apply to root.
  if (::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &processes) == 0 && processes.rlim_cur < workers) {
    throw UsageError(compose({.what = fmt::format("cannot start {} workers", nproc),
                              .evidence = fmt::format("this user may run {} processes", processes.rlim_cur),
                              .hint = "raise ulimit -u, or start fewer workers"}));
  }
  const rlim_t needed = workers * kFilesPerWorker + static_cast<rlim_t>(nnodes) + kFilesBesides;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return;
  if (files.rlim_max < needed) {
    throw UsageError(compose(
        {.what = fmt::format("cannot start {} workers", nproc),
         .evidence = fmt::format("they need {} open files, but only {} are allowed", needed, files.rlim_max),
         .hint = "raise ulimit -n, or start fewer workers"}));
  }
  files.rlim_cur = needed;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

void raise_open_files() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(files.rlim_max, kMostWorkerFiles);
  if (files.rlim_cur >= wanted) return;
  files.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace lockstep::launch
