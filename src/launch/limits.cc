#include "launch/limits.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fmt/format.h>
#include <set>
#include <sstream>
#include <string_view>
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

// Empty is a value: no GPUs.
std::optional<std::string> visible_gpus() {
  const char* const list = std::getenv("CUDA_VISIBLE_DEVICES");
  return list == nullptr ? std::nullopt : std::optional<std::string>(list);
}

// "nvidia0", and not "nvidiactl".
bool is_gpu(const std::string& name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         std::all_of(name.begin() + kPrefix.size(), name.end(),
                     [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

int available_cores() { return tuning::read_topology(tuning::affinity_of()).usable_cores(); }

int count_gpus(const std::filesystem::path& dev, const std::optional<std::string>& visible) {
  int devices = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dev, error)) {
    if (is_gpu(entry.path().filename())) ++devices;
  }
  if (!visible) return devices;
  // Like CUDA, which reads the list up to the first entry that is not a device, and accepts none at all if
  // one is listed twice. An entry is a number or the beginning of a name, such as GPU-1b2c; names are not
  // known here.
  std::set<std::string> seen;
  std::istringstream list(*visible);
  for (std::string entry; std::getline(list, entry, ',');) {
    const auto number = base::parse_int(entry);
    const bool known =
        number ? *number >= 0 && *number < devices : entry.starts_with("GPU-") || entry.starts_with("MIG-");
    if (!known) break;
    if (!seen.insert(entry).second) return 0;
  }
  return std::min(devices, static_cast<int>(seen.size()));
}

int available_gpus() { return count_gpus("/dev", visible_gpus()); }

int parse_nproc(const std::string& text) {
  if (text == "cpu") return available_cores();
  if (text == "auto" || text == "gpu") {
    const int gpus = available_gpus();
    if (gpus > 0) return gpus;
    if (text == "auto") return available_cores();
    throw UsageError(
        compose({.what = "--nproc-per-node gpu",
                 .evidence = fmt::format("there is no GPU that this process may use: {}",
                                         visible_gpus() && count_gpus("/dev", std::nullopt) > 0
                                             ? fmt::format("CUDA_VISIBLE_DEVICES is \"{}\"", *visible_gpus())
                                             : "there is no device file such as /dev/nvidia0"),
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
