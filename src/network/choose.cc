#include "network/choose.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::network {

namespace {

constexpr const char* kNameThem =
    "name the interfaces that connect the machines in LOCKSTEP_SOCKET_IFNAME, on every machine";

using Family = Local OfferedRail::*;

// "eth0, eth1"
std::string interfaces_of(const Offer& offer) {
  std::vector<std::string> names;
  for (const auto& rail : offer.rails)
    names.push_back(rail.v4.address.empty() ? rail.v6.interface : rail.v4.interface);
  return fmt::format("{}", fmt::join(names, ", "));
}

// The first problem in full, and those of other machines in short: one interface that is down on one machine
// has no carrier on another.
void check_problems(const std::vector<Member>& members) {
  constexpr size_t kMost = 4;
  std::vector<const Member*> affected;
  for (const auto& member : members) {
    const bool counted = std::any_of(affected.begin(), affected.end(),
                                     [&](const Member* other) { return other->machine == member.machine; });
    if (!member.offer.is_usable() && !counted && affected.size() < kMost) affected.push_back(&member);
  }
  if (affected.empty()) return;
  const auto& problem = affected.front()->offer.problem;
  auto evidence = problem.evidence;
  for (size_t i = 1; i < affected.size(); ++i)
    evidence += fmt::format("; {}: {}", affected[i]->name, affected[i]->offer.problem.what);
  throw UsageError(base::compose(
      {.what = problem.what, .where = affected.front()->name, .evidence = evidence, .hint = problem.hint}));
}

// The rail of a rank on the master's machine: the address at which the others reach the master.
void find_rail_at_master(Member& member, const std::vector<Member>& members) {
  std::vector<std::string> reached;
  for (const auto& other : members) {
    if (other.machine == member.machine) continue;
    for (const auto& address : other.offer.reached) {
      if (std::find(reached.begin(), reached.end(), address) == reached.end()) reached.push_back(address);
    }
  }
  auto rail = rail_through(member.offer.locals, reached);
  if (!rail.v4.address.empty() || !rail.v6.address.empty()) {
    member.offer.rails = {std::move(rail)};
    return;
  }
  std::vector<std::string> has;
  for (const auto& local : member.offer.locals)
    has.push_back(fmt::format("{} {}", local.interface, local.address));
  throw UsageError(
      base::compose({.what = "the address at which other machines can reach the master's machine is unknown",
                     .where = member.name,
                     .evidence = fmt::format(
                         "they reach the master at {}; its machine has {}",
                         reached.empty() ? "no known address" : fmt::format("{}", fmt::join(reached, ", ")),
                         has.empty() ? "no address" : fmt::format("{}", fmt::join(has, ", "))),
                     .hint = kNameThem}));
}

void check_numbers(const std::vector<Member>& members) {
  const auto& first = members.front();
  for (const auto& other : members) {
    if (other.offer.rails.size() == first.offer.rails.size()) continue;
    const auto text = [](const Member& member) {
      return fmt::format("{} has {} ({})", member.name, member.offer.rails.size(),
                         interfaces_of(member.offer));
    };
    throw MismatchError(base::compose(
        {.what = "the ranks do not have the same number of network interfaces",
         .evidence = fmt::format("{}, {}", text(first), text(other)),
         .hint = "name as many interfaces in LOCKSTEP_SOCKET_IFNAME on every machine, in the same order"}));
  }
}

bool all_have(const std::vector<Member>& members, size_t rail, Family family) {
  return std::all_of(members.begin(), members.end(), [&](const Member& member) {
    return !(member.offer.rails[rail].*family).address.empty();
  });
}

bool all_route(const std::vector<Member>& members, size_t rail, Family family) {
  return std::all_of(members.begin(), members.end(),
                     [&](const Member& member) { return (member.offer.rails[rail].*family).routed; });
}

[[noreturn]] void throw_no_common_family(const std::vector<Member>& members, size_t rail) {
  const auto without = [&](Family family, Family other, const char* name) {
    const auto member = std::find_if(members.begin(), members.end(), [&](const Member& candidate) {
      return (candidate.offer.rails[rail].*family).address.empty();
    });
    const auto& there = member->offer.rails[rail].*other;
    return fmt::format("{} has no {} address on {}, only {}", member->name, name, there.interface,
                       there.address);
  };
  throw UsageError(base::compose(
      {.what = "the machines have no family of addresses in common",
       .where = members.front().offer.rails.size() > 1 ? fmt::format("rail {}", rail) : "",
       .evidence = fmt::format("{}; {}", without(&OfferedRail::v4, &OfferedRail::v6, "IPv4"),
                               without(&OfferedRail::v6, &OfferedRail::v4, "IPv6")),
       .hint = std::string("give all machines IPv4 or IPv6 addresses there, or ") + kNameThem}));
}

std::vector<Family> choose_families(const std::vector<Member>& members) {
  constexpr Family kV4 = &OfferedRail::v4, kV6 = &OfferedRail::v6;
  const bool prefer_v6 = !all_route(members, 0, kV4) && all_route(members, 0, kV6);
  std::vector<Family> families;
  for (size_t rail = 0; rail < members.front().offer.rails.size(); ++rail) {
    const auto first = prefer_v6 ? kV6 : kV4, second = prefer_v6 ? kV4 : kV6;
    if (all_have(members, rail, first)) {
      families.push_back(first);
    } else if (all_have(members, rail, second)) {
      families.push_back(second);
    } else {
      throw_no_common_family(members, rail);
    }
  }
  return families;
}

// Networks that are not connected often use the same addresses: those of containers, those of virtual
// machines.
void check_unique(const std::vector<Member>& members, const std::vector<Rails>& chosen) {
  std::map<std::string, size_t> owners;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    for (size_t rail = 0; rail < chosen[rank].addresses.size(); ++rail) {
      const auto& address = chosen[rank].addresses[rail];
      const auto& owner = members[owners.try_emplace(address, rank).first->second];
      if (owner.machine == members[rank].machine) continue;
      throw UsageError(
          base::compose({.what = fmt::format("two machines have the same address, {}", address),
                         .evidence = fmt::format("{} and {} have it, the latter on {}", owner.name,
                                                 members[rank].name, chosen[rank].interfaces[rail]),
                         .hint = std::string("this interface does not connect the machines: ") + kNameThem}));
    }
  }
}

}  // namespace

std::vector<Rails> choose_rails(const std::vector<Member>& given) {
  const auto elsewhere = [&](const Member& member) { return member.machine != given.front().machine; };
  if (std::none_of(given.begin(), given.end(), elsewhere)) {
    return std::vector<Rails>(given.size(), {.addresses = {"127.0.0.1"},
                                             .interfaces = {"loopback"},
                                             .reasons = {"all ranks are on this machine"}});
  }
  auto members = given;
  check_problems(members);
  for (auto& member : members) {
    if (member.offer.at_master) find_rail_at_master(member, given);
  }
  check_numbers(members);
  const auto families = choose_families(members);
  std::vector<Rails> chosen;
  for (const auto& member : members) {
    auto& rails = chosen.emplace_back();
    for (size_t rail = 0; rail < families.size(); ++rail) {
      const auto& local = member.offer.rails[rail].*families[rail];
      rails.addresses.push_back(local.address);
      rails.interfaces.push_back(local.interface);
      rails.reasons.push_back(reason_for(member.offer, local));
    }
  }
  check_unique(members, chosen);
  return chosen;
}

std::string describe(const Rails& rails) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < rails.addresses.size(); ++i)
    texts.push_back(fmt::format("{} {}: {}", rails.interfaces[i], rails.addresses[i], rails.reasons[i]));
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace lockstep::network
