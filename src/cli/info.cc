#include "cli/info.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <gnu/libc-version.h>
#include <netdb.h>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/env.h"
#include "base/host.h"
#include "cli/report.h"
#include "groups/make_group.h"
#include "mpi/load.h"
#include "nccl/engine.h"
#include "network/offer.h"
#include "rendezvous/identity.h"
#include "shm/kernels.h"
#include "shm/layout.h"
#include "tuning/blas.h"
#include "tuning/cgroup.h"
#include "tuning/plan.h"
#include "tuning/topology.h"

#ifndef LOCKSTEP_VERSION
#define LOCKSTEP_VERSION "unknown"
#endif

namespace lockstep::cli {

namespace {

using Json = Report::Json;

// ---- Reading

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of the first line of the form "name : value" or "name: value".
std::string field(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const auto colon = line.find_first_not_of(" \t", name.size());
    if (colon == std::string::npos || line[colon] != ':') continue;
    const auto value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return {};
}

// The part of `text` between `start` and the next of the characters in `stops`.
std::string between(const std::string& text, const std::string& start, const char* stops) {
  const auto at = text.find(start);
  if (at == std::string::npos) return {};
  const auto begin = at + start.size();
  return text.substr(begin, text.find_first_of(stops, begin) - begin);
}

std::string count(int64_t number, const std::string& one, const std::string& many) {
  return fmt::format("{} {}", number, number == 1 ? one : many);
}

std::string bytes_text(double bytes) {
  const std::array units = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

// ---- Sections

void software(Report& report) {
  const auto config = at::show_config();
  const auto running = between(config, "TORCH_VERSION=", ", \n");
  const bool differs = !running.empty() && running != TORCH_VERSION;
  auto& section = report.section("software", "Software");
  section.row("lockstep", "lockstep", LOCKSTEP_VERSION)
      .row("libtorch", "LibTorch",
           differs ? fmt::format("{} (lockstep was built for {})", running, TORCH_VERSION) : TORCH_VERSION,
           {{"built_for", TORCH_VERSION}, {"running", running.empty() ? TORCH_VERSION : running}})
#if defined(__clang__)
      .row("compiler", "compiler", fmt::format("Clang {}", __clang_version__))
#else
      .row("compiler", "compiler", fmt::format("GCC {}", __VERSION__))
#endif
      .row("libc", "C library", fmt::format("glibc {}", ::gnu_get_libc_version()));
  if (differs) {
    report.problem(
        fmt::format("LibTorch {} is loaded, but lockstep was built for {}", running, TORCH_VERSION),
        "rebuild lockstep with the LibTorch that programs will use");
  }

  const auto blas = tuning::loaded_blas();
  std::string text = tuning::name_of(blas.kind);
  if (!blas.config.empty()) text = blas.config;
  if (blas.threads)
    text += fmt::format("\n{}, kernels for {}", count(*blas.threads, "thread", "threads"), blas.core);
  if (!blas.path.empty()) text += "\n" + blas.path;
  const bool mkl_inside = config.find("Math Kernel Library") != std::string::npos;
  if (blas.kind == tuning::BlasKind::Unknown && mkl_inside) text = "MKL, inside LibTorch";
  Json value = {{"name", mkl_inside ? "MKL" : tuning::name_of(blas.kind)}, {"path", blas.path}};
  if (blas.threads) value.update({{"config", blas.config}, {"core", blas.core}, {"threads", *blas.threads}});
  if (blas.kind == tuning::BlasKind::Reference) {
    text += "\n*** SLOW: this is the reference BLAS, tens of times slower than OpenBLAS ***";
    report.problem("the reference BLAS is loaded; matrix products take tens of times longer than they should",
                   "apt-get install libopenblas0-pthread");
  }
  section.row("blas", "BLAS", text, value);
}

void backends(Report& report) {
  auto& section = report.section("backends", "Backends");
  const auto add = [&](const char* name, bool there, const std::string& why) {
    section.row(name, name, fmt::format("{:<4} {}", there ? "yes" : "no", why),
                {{"available", there}, {"reason", why}});
  };
  const auto obstacle = groups::why_no_shm();
  if (obstacle.empty()) {
    add("shm", true,
        fmt::format(
            "{} kernels; each rank maps {} per group for control words and staging, of which only the used "
            "part occupies memory, and its registered tensors",
            shm::name_of(shm::best_isa()), bytes_text(shm::first_extent_bytes(2))));
  } else {
    add("shm", false, obstacle);
    report.problem(
        "ranks of this machine cannot share memory: " + obstacle,
        "allow memfd_create(2); without it ranks communicate over loopback TCP, tens of times slower");
  }
#ifdef USE_C10D_GLOO
  add("gloo", true, "part of this LibTorch");
#else
  add("gloo", false, "this LibTorch was built without Gloo");
  report.problem("no backend can connect several processes: this LibTorch was built without Gloo",
                 "use a LibTorch with Gloo: Debian's libtorch-dev, or one from pytorch.org");
#endif
  if (nccl::has_nccl()) {
    const auto devices = static_cast<int64_t>(nccl::visible_devices().size());
    add("nccl", true,
        fmt::format("part of this LibTorch; this process sees {}",
                    count(devices, "CUDA device", "CUDA devices")));
  } else {
    add("nccl", false, "this LibTorch was built without NCCL");
  }
  const auto& mpi = mpi::load();
  add("mpi", mpi.engine != nullptr,
      mpi.engine != nullptr
          ? fmt::format("between machines, with LOCKSTEP_LINK=mpi: {}", mpi.engine->library())
          : mpi.fault);
}

std::string simd_level() {
  auto flags = " " + field("/proc/cpuinfo", "flags") + " ";
  const auto has = [&](const char* flag) {
    return flags.find(fmt::format(" {} ", flag)) != std::string::npos;
  };
  std::vector<std::string> levels;
  if (has("avx512f")) {
    std::string extras;
    for (const char* extra : {"bw", "dq", "vl", "_vnni", "_bf16", "_fp16"}) {
      if (has(fmt::format("avx512{}", extra).c_str()))
        extras += fmt::format(" {}", *extra == '_' ? extra + 1 : extra);
    }
    levels.push_back(extras.empty() ? "AVX-512" : fmt::format("AVX-512 ({})", extras.substr(1)));
  }
  if (has("amx_tile")) levels.emplace_back("AMX");
  if (has("avx2")) levels.emplace_back(has("fma") ? "AVX2 with FMA" : "AVX2");
  if (levels.empty() && has("sse4_2")) levels.emplace_back("SSE4.2");
  flags = " " + field("/proc/cpuinfo", "Features") + " ";  // arm64
  for (const auto& [flag, name] :
       {std::pair("sve2", "SVE2"), std::pair("sve", "SVE"), std::pair("asimd", "NEON")}) {
    if (has(flag)) levels.emplace_back(name);
  }
  return levels.empty() ? "none known" : fmt::format("{}", fmt::join(levels, ", "));
}

void processor(Report& report, const tuning::Topology& machine, const std::vector<int>& allowed) {
  const auto online = tuning::parse_cpu_list(first_line("/sys/devices/system/cpu/online"));
  const auto affinity = tuning::format_cpu_list(allowed);
  auto& section = report.section("processor", "Processor");
  const auto model = field("/proc/cpuinfo", "model name");
  section.row("model", "model", model.empty() ? "unknown" : model);
  section.row("shape", "usable",
              fmt::format("{} ({}), {}, {}", count(machine.cores(), "core", "cores"),
                          count(static_cast<int64_t>(machine.cpus.size()), "CPU", "CPUs"),
                          count(machine.packages(), "socket", "sockets"),
                          count(machine.nodes(), "NUMA node", "NUMA nodes")),
              {{"cores", machine.cores()},
               {"cpus", machine.cpus.size()},
               {"sockets", machine.packages()},
               {"numa_nodes", machine.nodes()},
               {"usable_cores", machine.usable_cores()}});
  section.row(
      "affinity", "affinity",
      affinity + (allowed.size() < online.size() ? fmt::format(" of {}", tuning::format_cpu_list(online))
                                                 : " (all)"),
      {{"allowed", affinity}, {"online", tuning::format_cpu_list(online)}});
  section.row("quota", "cgroup quota", machine.quota ? fmt::format("{:.2f} CPUs", *machine.quota) : "none",
              machine.quota ? Json(*machine.quota) : Json(nullptr));
  section.row("simd", "SIMD", simd_level());
  section.row("libtorch_kernels", "LibTorch uses",
              between(at::show_config(), "CPU capability usage: ", "\n"));
  if (machine.quota && *machine.quota < 1) {
    report.problem(fmt::format("the cgroup allows {:.2f} of one CPU's time", *machine.quota),
                   "raise the container's CPU limit to at least one CPU for each rank");
  }
  if (!tuning::bind_this_thread(allowed)) {
    report.problem("the CPU affinity cannot be changed; ranks will not be bound to their own cores",
                   "allow sched_setaffinity in the container's seccomp profile, or set LOCKSTEP_BIND=0");
  }
}

void memory(Report& report) {
  const auto kib = [](const char* name) {
    return std::strtoll(field("/proc/meminfo", name).c_str(), nullptr, 10);
  };
  const int64_t total = kib("MemTotal") * 1024, available = kib("MemAvailable") * 1024;
  auto& section = report.section("memory", "Memory");
  section.row("system", "system", fmt::format("{}, {} available", bytes_text(total), bytes_text(available)),
              {{"total_bytes", total}, {"available_bytes", available}});
  const auto limit = tuning::memory_limit_bytes();
  section.row("cgroup_limit_bytes", "cgroup limit", limit ? bytes_text(*limit) : "none",
              limit ? Json(*limit) : Json(nullptr));
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    const auto size = static_cast<int64_t>(shm.f_blocks * shm.f_frsize);
    section.row("dev_shm_bytes", "/dev/shm", bytes_text(size), size);
  } else {
    section.row("dev_shm_bytes", "/dev/shm", "does not exist", nullptr);
  }
  // The file lists all modes, with the active one in brackets.
  const auto mode = between(first_line("/sys/kernel/mm/transparent_hugepage/enabled"), "[", "]");
  section.row("huge_pages", "huge pages",
              mode.empty() ? "not supported" : fmt::format("transparent: {}", mode),
              mode.empty() ? Json(nullptr) : Json(mode));
}

void limits(Report& report) {
  auto& section = report.section("limits", "Limits");
  struct Limit {
    const char* key;
    const char* label;
    decltype(RLIMIT_NOFILE) which;
    bool in_bytes;
    rlim_t least;  // a lower limit is likely to affect training
    const char* hint;
  };
  for (const auto& limit :
       {Limit{"open_files", "open files", RLIMIT_NOFILE, false, 1024, "ulimit -n 65536"},
        Limit{"processes", "processes", RLIMIT_NPROC, false, 256, "ulimit -u 4096; threads count too"},
        Limit{"locked_memory", "locked memory", RLIMIT_MEMLOCK, true, 0, ""},
        Limit{"core_files", "core files", RLIMIT_CORE, true, 0, ""}}) {
    rlimit value{};
    if (::getrlimit(limit.which, &value) != 0) continue;
    const auto text = [&](rlim_t number) {
      if (number == RLIM_INFINITY) return std::string("unlimited");
      if (limit.in_bytes && number == 0) return std::string("none");
      return limit.in_bytes ? bytes_text(static_cast<double>(number)) : fmt::format("{}", number);
    };
    const auto json = [](rlim_t number) { return number == RLIM_INFINITY ? Json(nullptr) : Json(number); };
    section.row(limit.key, limit.label,
                value.rlim_cur == value.rlim_max
                    ? text(value.rlim_cur)
                    : fmt::format("{}, can be raised to {}", text(value.rlim_cur), text(value.rlim_max)),
                {{"soft", json(value.rlim_cur)}, {"hard", json(value.rlim_max)}});
    if (value.rlim_cur < limit.least) {
      report.problem(fmt::format("the limit of {} is {}, which is low", limit.label, text(value.rlim_cur)),
                     limit.hint);
    }
  }
}

void system(Report& report) {
  utsname kernel{};
  ::uname(&kernel);
  const auto host = base::host_name();
  addrinfo* found = nullptr;
  const bool resolves = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found) == 0;
  if (resolves) ::freeaddrinfo(found);
  report.section("system", "System")
      .row("host", "host", host + (resolves ? "" : " (does not resolve)"),
           {{"name", host}, {"resolves", resolves}})
      .row("kernel", "kernel", fmt::format("{} {} {}", kernel.sysname, kernel.release, kernel.machine));
  if (!resolves) {
    report.problem(
        fmt::format("this machine's name, {}, does not resolve to an address", host),
        fmt::format("add \"127.0.1.1 {}\" to /etc/hosts; jobs on one machine run without it", host));
  }
}

// Splits an error's message into the problem and the hint.
void add_problem(Report& report, const Error& error) {
  const std::string message = error.what();
  const auto hint = message.find("\nhint: ");
  report.problem(message.substr(0, hint), hint == std::string::npos ? "" : message.substr(hint + 7));
}

// What init_process_group would read from the environment, without connecting to other ranks.
void job(Report& report) {
  auto& section = report.section("job", "Job, according to the environment");
  rendezvous::Identity identity;
  try {
    identity = rendezvous::identify(rendezvous::NeedMaster::Yes);
  } catch (const UsageError& error) {
    section.row("launcher", "launcher", "unknown: see the problems below", nullptr);
    return add_problem(report, error);
  }
  if (identity.launcher == "none") {
    section.row("launcher", "launcher", "none: a world of one process", nullptr);
    return;
  }
  section.row("launcher", "launcher", identity.launcher + "'s variables", identity.launcher);
  section.row("rank", "rank", fmt::format("{} of {}", identity.rank, identity.world_size), identity.rank);
  if (identity.local_rank) {
    section.row("local_rank", "local rank",
                identity.local_world_size
                    ? fmt::format("{} of {}", *identity.local_rank, *identity.local_world_size)
                    : std::to_string(*identity.local_rank),
                *identity.local_rank);
  }
  if (!identity.master_addr.empty()) {
    const auto master = base::host_port(identity.master_addr, identity.master_port);
    section.row("master", "meeting point", master, master);
  }
}

// The interfaces, and the one that ranks of a job over several machines would use.
void way(Report& report, const std::string& master) {
  const auto view = network::view_towards(master);
  const auto naming = network::naming_from_environment();
  auto& section = report.section("network", "Network between machines");
  std::string text;
  Json interfaces = Json::array();
  for (const auto& interface : view.interfaces) {
    text += (text.empty() ? "" : "\n") + network::describe(interface);
    interfaces.push_back({{"name", interface.name},
                          {"up", interface.up},
                          {"carrier", interface.carrier},
                          {"addresses", interface.addresses}});
  }
  section.row("interfaces", "interfaces", text, interfaces);
  section.row("master", "master", master.empty() ? "unknown: --master-addr HOST shows the way to it" : master,
              master.empty() ? Json(nullptr) : Json(master));
  if (master.empty() && naming.variable.empty()) {
    section.row("choice", "choice", "the interface that routes to the master", nullptr);
  } else if (naming.variable.empty() && (base::is_loopback(master) || master == "localhost")) {
    section.row("choice", "choice", "loopback: all ranks are on this machine", "loopback");
  } else if (const auto offer = network::make_offer(view, naming); offer.is_usable()) {
    section.row("choice", "choice", network::describe(offer));
  } else {
    section.row("choice", "choice", "none: see the problems below", nullptr);
    report.problem(fmt::format("{}: {}", offer.problem.what, offer.problem.evidence), offer.problem.hint);
  }
}

// One line for each of these numbers of local ranks: 1, 2, 4, … and the number of cores.
void tuning_plans(Report& report, const tuning::Topology& machine) {
  tuning::Switches switches;
  try {
    switches = tuning::switches_from_environment();
  } catch (const UsageError& error) {
    add_problem(report, error);
  }
  auto& section = report.section("tuning", "Tuning of each rank");
  std::vector<int> worlds;
  const int most = std::max(machine.usable_cores(), 1);
  for (int ranks = 1; ranks < most; ranks *= 2) worlds.push_back(ranks);
  worlds.push_back(most);

  std::string text;
  Json value = Json::array();
  for (const int ranks : worlds) {
    std::vector<std::string> cpus;
    tuning::Plan plan;
    for (int rank = 0; rank < ranks; ++rank) {
      plan = tuning::plan_on(machine, rank, ranks, switches);
      cpus.push_back(tuning::format_cpu_list(plan.cpus));
    }
    value.push_back({{"local_ranks", ranks},
                     {"threads", plan.threads},
                     {"cpus", plan.cpus.empty() ? Json(nullptr) : Json(cpus)}});
    constexpr size_t kShown = 4;
    std::string bound = "not bound";
    if (!plan.cpus.empty()) {
      const bool all = cpus.size() <= kShown;
      bound = fmt::format("bound to CPUs {}",
                          fmt::join(cpus.begin(), all ? cpus.end() : cpus.begin() + kShown, " | "));
      if (!all) bound += fmt::format(" | … | {}", cpus.back());
    }
    text += fmt::format("{}{:>3}: {}, {}", text.empty() ? "" : "\n", ranks,
                        plan.threads == 0 ? "threads unchanged" : count(plan.threads, "thread", "threads"),
                        bound);
  }
  section.row("plans", "local ranks", text, value);
  section.row("heap", "heap", switches.heap ? "freed memory is kept" : "the C library's default",
              switches.heap);

  const int by_itself = at::get_num_threads();
  section.row("libtorch_threads", "untuned",
              fmt::format("LibTorch would use {} by default", count(by_itself, "thread", "threads")),
              by_itself);

  const auto wanted = base::env_string("OMP_NUM_THREADS").value_or("");
  const auto threads = base::parse_int(wanted.substr(0, wanted.find(',')));
  const auto ranks = base::parse_int(base::env_string("LOCAL_WORLD_SIZE").value_or("1")).value_or(1);
  if (threads && ranks > 0 && *threads * ranks > machine.usable_cores()) {
    report.problem(
        fmt::format("OMP_NUM_THREADS is {}: {} on {}", *threads, count(*threads * ranks, "thread", "threads"),
                    count(machine.usable_cores(), "core", "cores")),
        "unset it, and cores / local ranks will be used");
  }
}

void variables(Report& report) {
  auto& section = report.section("variables", "Variables");
  size_t width = 0;
  const auto value_of = [](const base::Knob& knob) {
    auto value = base::env_string(knob.name);
    if (value && knob.secret) value = "(secret)";
    return value;
  };
  const auto shown = [&](const base::Knob& knob) {
    const auto value = value_of(knob);
    return value ? fmt::format("= {}", *value) : fmt::format("unset: {}", knob.fallback);
  };
  for (const auto& knob : base::knobs()) width = std::max(width, shown(knob).size());
  for (const auto& knob : base::knobs()) {
    const auto value = value_of(knob);
    section.row(knob.name, knob.name, fmt::format("{:<{}}  {}", shown(knob), width, knob.meaning),
                {{"value", value ? Json(*value) : Json(nullptr)},
                 {"default", knob.fallback},
                 {"meaning", knob.meaning}});
  }
}

}  // namespace

int info(bool json, const std::string& master) {
  const auto allowed = tuning::affinity_of();
  const auto machine = tuning::read_topology(allowed);
  Report report;
  software(report);
  backends(report);
  processor(report, machine, allowed);
  memory(report);
  limits(report);
  system(report);
  job(report);
  way(report, base::without_brackets(master.empty() ? base::env_string("MASTER_ADDR").value_or("") : master));
  tuning_plans(report, machine);
  variables(report);
  fmt::print("{}", json ? report.as_json() : report.as_text(::isatty(STDOUT_FILENO) == 1));
  return 0;
}

}  // namespace lockstep::cli
