#include "network/offer.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/address.h"
#include "base/env.h"

namespace lockstep::network {

namespace {

constexpr const char* kOurVariable = "LOCKSTEP_SOCKET_IFNAME";
constexpr const char* kGloosVariable = "GLOO_SOCKET_IFNAME";

std::vector<Local> locals_of(const std::vector<Interface>& interfaces) {
  std::vector<Local> locals;
  for (const auto& interface : interfaces) {
    for (const auto& address : interface.addresses) {
      if (!base::is_loopback(address)) locals.push_back({interface.name, address});
    }
  }
  return locals;
}

bool is_empty(const OfferedRail& rail) { return rail.v4.address.empty() && rail.v6.address.empty(); }

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> parts(1);
  for (const char c : names) {
    if (c == ',') {
      parts.emplace_back();
    } else if (c != ' ') {
      parts.back() += c;
    }
  }
  return parts;
}

// The rail of an interface that the user has named. If that is impossible, `fault` says why.
OfferedRail named_rail(const std::string& name, const View& view, const std::vector<std::string>& routed,
                       std::string& fault) {
  const auto interface = std::find_if(view.interfaces.begin(), view.interfaces.end(),
                                      [&](const Interface& other) { return other.name == name; });
  if (interface == view.interfaces.end()) {
    fault = fmt::format("there is no network interface \"{}\"", name);
    return {};
  }
  const auto locals = locals_of({*interface});
  auto rail = rail_through(locals, routed, name);
  std::string why;
  if (!interface->up) {
    why = "is down";
  } else if (!interface->carrier) {
    why = "has no carrier";
  } else if (interface->addresses.empty()) {
    why = "has no address";
  } else if (locals.empty()) {
    why = "has only loopback addresses, which other machines cannot reach";
  } else if (is_empty(rail)) {
    why = "has only link-local addresses, with which Gloo cannot connect machines";
  }
  if (!why.empty()) fault = fmt::format("the network interface \"{}\" {}", name, why);
  return rail;
}

void offer_named(Offer& offer, const View& view, const Naming& naming,
                 const std::vector<std::string>& routed) {
  std::string fault;
  for (const auto& name : split(naming.names)) {
    if (fault.empty()) offer.rails.push_back(named_rail(name, view, routed, fault));
  }
  if (fault.empty()) return;
  offer.rails.clear();
  offer.problem = {
      .what = fault,
      .evidence = fmt::format("{} is \"{}\"; the machine has {}", naming.variable, naming.names,
                              describe(view.interfaces)),
      .hint = fmt::format("name interfaces that connect the machines in {}, separated by commas, "
                          "or unset it to use the one that routes to the master",
                          naming.variable)};
}

void offer_routed(Offer& offer, const View& view, const std::vector<std::string>& routed) {
  const auto hint = fmt::format("name the interface that connects the machines in {}", kOurVariable);
  const auto locals = locals_of(view.interfaces);
  if (view.routes.empty()) {
    const auto why = view.master.empty() ? "the ranks do not meet at an address, to which a route leads"
                                         : fmt::format("master {}: {}", view.master, view.why_no_route);
    offer.problem.evidence = fmt::format("{}; the machine has {}", why, describe(view.interfaces));
    offer.problem.hint = hint;
  } else if (routed.empty()) {
    offer.at_master = true;
    std::copy_if(locals.begin(), locals.end(), std::back_inserter(offer.locals),
                 [](const Local& local) { return !base::is_link_local(local.address); });
  } else if (auto rail = rail_through(locals, routed); !is_empty(rail)) {
    offer.rails.push_back(std::move(rail));
  } else {
    offer.problem = {
        .what = "the interface that routes to the master has no address with which Gloo can connect machines",
        .evidence = fmt::format("the route to {} starts at {}; the machine has {}", view.routes.front().to,
                                routed.front(), describe(view.interfaces)),
        .hint = "give the interface an address that is not link-local, or " + hint};
  }
}

std::string text_of(const Local& local) { return fmt::format("{} {}", local.interface, local.address); }

nlohmann::json to_json(const Local& local) {
  return nlohmann::json::array({local.interface, local.address, local.routed});
}

Local local_from_json(const nlohmann::json& json) {
  // One by one: GCC 12 destroys members of an aggregate twice if a later initialiser throws.
  Local local;
  local.interface = json.at(0);
  local.address = json.at(1);
  local.routed = json.at(2);
  return local;
}

}  // namespace

Naming naming_from_environment() {
  for (const char* variable : {kOurVariable, kGloosVariable}) {
    if (const auto names = base::env_string(variable)) return {variable, *names};
  }
  return {};
}

OfferedRail rail_through(const std::vector<Local>& locals, const std::vector<std::string>& routed,
                         std::string interface) {
  OfferedRail rail;
  const auto take = [&](Local local) {
    auto& slot = base::is_ipv6(local.address) ? rail.v6 : rail.v4;
    if (slot.address.empty() && !base::is_link_local(local.address)) slot = std::move(local);
  };
  for (const auto& address : routed) {
    const auto local = std::find_if(locals.begin(), locals.end(),
                                    [&](const Local& other) { return other.address == address; });
    if (local == locals.end()) continue;
    if (interface.empty()) interface = local->interface;
    take({local->interface, address, true});
  }
  for (const auto& local : locals) {
    if (local.interface == interface) take(local);
  }
  return rail;
}

Offer make_offer(const View& view, const Naming& naming) {
  Offer offer{.variable = naming.variable};
  std::vector<std::string> routed;
  for (const auto& route : view.routes) {
    if (base::is_loopback(route.from)) continue;
    routed.push_back(route.from);
    offer.reached.push_back(route.to);
  }
  if (naming.variable.empty()) {
    offer_routed(offer, view, routed);
  } else {
    offer_named(offer, view, naming, routed);
  }
  return offer;
}

Offer offer_of_this_process(const std::string& master) {
  return make_offer(view_towards(master), naming_from_environment());
}

std::string reason_for(const Offer& offer, const Local& local) {
  if (!offer.variable.empty()) return "named by " + offer.variable;
  const auto& reached = offer.reached;
  if (std::find(reached.begin(), reached.end(), local.address) != reached.end())
    return "the master's address";
  const auto same_family = std::find_if(reached.begin(), reached.end(), [&](const std::string& address) {
    return base::is_ipv6(address) == base::is_ipv6(local.address);
  });
  if (local.routed && same_family != reached.end())
    return fmt::format("routes to the master {}", *same_family);
  if (offer.at_master) return "where other machines reach the master";
  return fmt::format("on the interface that routes to the master {}", reached.empty() ? "" : reached.front());
}

std::string describe(const Offer& offer) {
  if (!offer.is_usable()) return offer.problem.what;
  if (offer.at_master) return "this machine is the master: the address at which the other machines reach it";
  std::string text;
  for (size_t i = 0; i < offer.rails.size(); ++i) {
    for (const auto* local : {&offer.rails[i].v4, &offer.rails[i].v6}) {
      if (local->address.empty()) continue;
      const auto rail = offer.rails.size() > 1 ? fmt::format("rail {}: ", i) : "";
      text += fmt::format("{}{}{}: {}", text.empty() ? "" : "\n", rail, text_of(*local),
                          reason_for(offer, *local));
    }
  }
  return text;
}

nlohmann::json to_json(const Offer& offer) {
  auto rails = nlohmann::json::array(), locals = nlohmann::json::array();
  for (const auto& rail : offer.rails)
    rails.push_back(nlohmann::json::array({to_json(rail.v4), to_json(rail.v6)}));
  for (const auto& local : offer.locals) locals.push_back(to_json(local));
  return {{"variable", offer.variable},
          {"rails", std::move(rails)},
          {"reached", offer.reached},
          {"at_master", offer.at_master},
          {"locals", std::move(locals)},
          {"problem", {offer.problem.what, offer.problem.evidence, offer.problem.hint}}};
}

Offer offer_from_json(const nlohmann::json& json) {
  Offer offer;
  offer.variable = json.at("variable");
  offer.reached = json.at("reached");
  offer.at_master = json.at("at_master");
  offer.problem.what = json.at("problem").at(0);
  offer.problem.evidence = json.at("problem").at(1);
  offer.problem.hint = json.at("problem").at(2);
  for (const auto& rail : json.at("rails")) {
    auto& added = offer.rails.emplace_back();
    added.v4 = local_from_json(rail.at(0));
    added.v6 = local_from_json(rail.at(1));
  }
  for (const auto& local : json.at("locals")) offer.locals.push_back(local_from_json(local));
  return offer;
}

}  // namespace lockstep::network
