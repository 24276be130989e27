// Chooses the transport of a group by its name, its ranks and the backends of this build.
#include <fmt/format.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "base/log.h"
#include "gloo/make_gloo.h"
#include "groups/make_group.h"
#include "shm/layout.h"

namespace lockstep::groups {

std::string wanted_backend(const std::string& option) {
  const auto variable = option == "auto" ? base::env_string("LOCKSTEP_BACKEND") : std::nullopt;
  auto wanted = variable.value_or(option);
  std::string why;
  if (may_be_shm(wanted)) return wanted;
  if (wanted == "gloo") {
    if (gloo::has_gloo()) return wanted;
    why = "this LibTorch was built without Gloo";
  } else if (wanted == "hybrid" || wanted == "nccl") {
    why = "this build of lockstep does not have it";
  } else {
    why = "no backend has this name";
  }
  throw UsageError(base::compose(
      {.what = fmt::format("backend \"{}\" is not available", wanted),
       .where = variable ? "environment variable LOCKSTEP_BACKEND" : "",
       .evidence = why + "; available: shm" + (gloo::has_gloo() ? ", gloo" : ""),
       .hint = variable ? "correct LOCKSTEP_BACKEND, or unset it" : "leave the backend at \"auto\""}));
}

bool may_be_shm(const std::string& wanted) { return wanted == "auto" || wanted == "shm"; }

std::string why_no_shm() {
  try {
    shm::Segment::create("lockstep-probe", shm::Segment::kTableBytes);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string choose_backend(const std::string& wanted, const std::vector<rendezvous::RankFacts>& ranks) {
  if (wanted == "gloo") return wanted;
  std::string obstacle;
  if (ranks.size() > shm::kMaxWorld) {
    obstacle = fmt::format("there are {} ranks, and shared memory supports at most {}", ranks.size(),
                           shm::kMaxWorld);
  }
  for (const auto& other : ranks) {
    if (!obstacle.empty()) break;
    if (other.machine != ranks[0].machine) {
      obstacle = fmt::format("{} and {} are not on the same machine", ranks[0].describe(), other.describe());
    } else if (!other.no_shm.empty()) {
      obstacle = fmt::format("{} cannot share memory: {}", other.describe(), other.no_shm);
    }
  }
  if (obstacle.empty()) return "shm";
  if (wanted == "auto" && gloo::has_gloo()) {
    base::log_debug("using gloo instead of shm: {}", obstacle);
    return "gloo";
  }
  throw UsageError(base::compose({.what = fmt::format("backend \"{}\" cannot connect these ranks", wanted),
                                  .evidence = obstacle,
                                  .hint = gloo::has_gloo() ? "use backend \"gloo\" or \"auto\""
                                                           : "use a LibTorch with Gloo, such as Debian's"}));
}

}  // namespace lockstep::groups
