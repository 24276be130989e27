// Chooses the transport of a group by its name, its ranks and the backends of this build.
#include <algorithm>
#include <fmt/format.h>
#include <map>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "base/log.h"
#include "gloo/make_gloo.h"
#include "groups/make_group.h"
#include "nccl/devices.h"
#include "nccl/engine.h"
#include "shm/layout.h"

namespace lockstep::groups {

namespace {

constexpr const char* kBuiltWithoutNccl = "this LibTorch was built without NCCL";

}  // namespace

std::string wanted_backend(const std::string& option) {
  const auto variable = option == "auto" ? base::env_string("LOCKSTEP_BACKEND") : std::nullopt;
  auto wanted = variable.value_or(option);
  std::string why;
  if (wanted == "auto" || wanted == "shm") return wanted;
  if (wanted == "gloo" || wanted == "hybrid") {
    if (gloo::has_gloo() || (wanted == "hybrid" && wanted_link() == "mpi")) return wanted;
    why = "this LibTorch was built without Gloo";
  } else if (wanted == "nccl") {
    if (nccl::has_nccl()) return wanted;
    why = kBuiltWithoutNccl;
  } else {
    why = "no backend has this name";
  }
  throw UsageError(base::compose(
      {.what = fmt::format("backend \"{}\" is not available", wanted),
       .where = variable ? "environment variable LOCKSTEP_BACKEND" : "",
       .evidence = fmt::format("{}; available: shm{}{}", why, gloo::has_gloo() ? ", gloo, hybrid" : "",
                               nccl::has_nccl() ? ", nccl" : ""),
       .hint = variable ? "correct LOCKSTEP_BACKEND, or unset it" : "leave the backend at \"auto\""}));
}

std::string wanted_link() {
  const auto link = base::env_string("LOCKSTEP_LINK").value_or("auto");
  if (link == "auto") return "gloo";
  if (link == "gloo" || link == "mpi") return link;
  throw UsageError(base::compose({.what = "environment variable LOCKSTEP_LINK is invalid",
                                  .evidence = fmt::format("its value is \"{}\"", link),
                                  .hint = "use auto, gloo or mpi, or unset it"}));
}

bool may_share_memory(const std::string& wanted) { return wanted != "gloo"; }
bool may_use_nccl(const std::string& wanted) { return wanted == "auto" || wanted == "nccl"; }

std::string why_no_shm() {
  try {
    shm::Segment::create("lockstep-probe", shm::Segment::kTableBytes);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

namespace {

// Why ranks that are on the same machine, if they are, cannot share memory; empty if they can.
std::string obstacle_on_machines(const std::vector<rendezvous::RankFacts>& ranks) {
  std::map<std::string, size_t> ranks_on;
  for (const auto& rank : ranks) ++ranks_on[rank.machine];
  for (const auto& rank : ranks) {
    const auto neighbours = ranks_on[rank.machine];
    if (neighbours > shm::kMaxWorld) {
      return fmt::format("there are {} ranks on host {}, and shared memory supports at most {}", neighbours,
                         rank.host, shm::kMaxWorld);
    }
    if (neighbours > 1 && !rank.no_shm.empty()) {
      return fmt::format("{} cannot share memory: {}", rank.describe(), rank.no_shm);
    }
  }
  return {};
}

}  // namespace

std::string choose_host_backend(const std::string& wanted, const std::vector<rendezvous::RankFacts>& ranks) {
  if (wanted == "gloo") return wanted;
  const auto elsewhere = std::find_if(ranks.begin(), ranks.end(),
                                      [&](const auto& rank) { return rank.machine != ranks[0].machine; });
  const bool one_machine = elsewhere == ranks.end();
  auto obstacle = obstacle_on_machines(ranks);
  if (wanted == "shm" && !one_machine) {
    obstacle =
        fmt::format("{} and {} are not on the same machine", ranks[0].describe(), elsewhere->describe());
  }
  if (obstacle.empty() && one_machine) return "shm";
  const bool over_mpi = ranks[0].link == "mpi";
  if (obstacle.empty() && (gloo::has_gloo() || over_mpi)) return "hybrid";
  if (may_use_nccl(wanted) && gloo::has_gloo() && !over_mpi) {
    base::log_debug("using gloo: {}", obstacle);
    return "gloo";
  }
  if (obstacle.empty())
    obstacle = "the ranks are on several machines, and this LibTorch was built without Gloo";
  throw UsageError(base::compose(
      {.what = fmt::format("backend \"{}\" cannot connect these ranks", wanted),
       .evidence = obstacle,
       .hint = over_mpi           ? "unset LOCKSTEP_LINK, so that Gloo connects them"
               : gloo::has_gloo() ? "use backend \"gloo\" or \"auto\""
                                  : "use a LibTorch with Gloo, such as Debian's, or LOCKSTEP_LINK=mpi"}));
}

Backend choose_backend(const std::string& wanted, std::vector<rendezvous::RankFacts>& ranks) {
  Backend backend{.host = choose_host_backend(wanted, ranks)};
  if (!may_use_nccl(wanted)) {
    backend.no_cuda = {fmt::format("backend \"{}\" was requested", wanted), "request \"nccl\" or \"auto\""};
  } else if (!nccl::has_nccl()) {
    backend.no_cuda = {kBuiltWithoutNccl, "use a LibTorch for CUDA"};
  } else if (const auto too_few = nccl::assign_devices(ranks)) {
    backend.no_cuda = {too_few->evidence, too_few->hint};
  } else {
    backend.nccl = true;
  }
  if (wanted == "nccl" && !backend.nccl) {
    throw UsageError(base::compose({.what = "backend \"nccl\" cannot connect these ranks",
                                    .evidence = backend.no_cuda.evidence,
                                    .hint = backend.no_cuda.hint}));
  }
  return backend;
}

}  // namespace lockstep::groups
