#include "rendezvous/rails.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/log.h"
#include "network/reach.h"
#include "rendezvous/meet.h"

namespace lockstep::rendezvous {

namespace {

using namespace std::chrono_literals;
using network::Rails;

// The kernel repeats the request after 1, 3 and 7 s.
constexpr auto kConnectTime = 8s;
// The answer is sent by a process, whose machine may be busy.
constexpr auto kAnswerTime = 30s;
// For the other ranks to learn that the check has failed, before rank 0 closes the store.
constexpr auto kLeaveTime = 5s;

std::vector<Rails> choose(const std::vector<RankFacts>& ranks) {
  std::vector<network::Member> members;
  for (const auto& facts : ranks) members.push_back({facts.describe(), facts.loopback, facts.network});
  return network::choose_rails(members);
}

base::Deadline within(std::chrono::milliseconds time, base::Deadline deadline) {
  return base::Deadline::in(std::min(time, deadline.remaining()));
}

// The first rank of each machine. Ranks of one machine that use different interfaces are represented
// separately.
std::vector<int> representatives(const std::vector<RankFacts>& ranks, const std::vector<Rails>& rails) {
  std::vector<int> chosen;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const bool represented = std::any_of(chosen.begin(), chosen.end(), [&](int other) {
      return ranks[other].loopback == ranks[rank].loopback && rails[other].addresses == rails[rank].addresses;
    });
    if (!represented) chosen.push_back(rank);
  }
  return chosen;
}

// What a representative does.
class Check {
 public:
  Check(int rank, const std::vector<RankFacts>& ranks, const std::vector<Rails>& rails)
      : rank_(rank), ranks_(ranks), rails_(rails) {}

  // Connects to the other representatives, who must call it too. Returns what has failed; empty if nothing
  // has. Until this object is destroyed, it answers the others.
  std::string run(KeyStore& store, const std::vector<int>& representatives, base::Deadline deadline) {
    std::string fault;
    const auto said = start_responder(fault);
    const auto index =
        std::find(representatives.begin(), representatives.end(), rank_) - representatives.begin();
    const auto heard = exchange(*store.under("responders", representatives), static_cast<int>(index),
                                static_cast<int>(representatives.size()), said, deadline);
    for (size_t i = 0; i < heard.size(); ++i) {
      if (representatives[i] != rank_ && !heard[i].empty()) add_targets(representatives[i], heard[i]);
    }
    const auto reached =
        network::try_to_reach(targets_, within(kConnectTime, deadline), within(kAnswerTime, deadline));
    warn_about_routes(reached);
    return fault.empty() ? describe_failures(reached) : fault;
  }

 private:
  struct End {
    int rank;
    size_t rail;
  };

  // Returns what the others need to know; nothing if it fails.
  std::string start_responder(std::string& fault) {
    const auto secret = base::Token::random();
    try {
      responder_.emplace(rails_[rank_].addresses, secret);
    } catch (const SystemError& error) {
      fault = base::compose({.what = "this machine cannot be reached",
                             .where = ranks_[rank_].describe(),
                             .evidence = error.what(),
                             .hint = "check the interface's addresses"});
      return {};
    }
    return nlohmann::json{{"ports", responder_->ports()}, {"secret", secret.text()}}.dump();
  }

  void add_targets(int other, const std::string& heard) {
    const auto json = nlohmann::json::parse(heard);
    const base::Token secret(json.at("secret").get<std::string>());
    for (size_t rail = 0; rail < rails_[other].addresses.size(); ++rail) {
      targets_.push_back({rails_[other].addresses[rail], json.at("ports").at(rail), secret});
      ends_.push_back({other, rail});
    }
  }

  std::string describe(End end) const {
    return fmt::format("{}, {} {}", ranks_[end.rank].describe(), rails_[end.rank].interfaces[end.rail],
                       rails_[end.rank].addresses[end.rail]);
  }

  std::string describe_failures(const std::vector<network::Reached>& reached) const {
    const auto failed = [](const network::Reached& one) { return !one.fault.empty(); };
    const auto first = std::find_if(reached.begin(), reached.end(), failed);
    if (first == reached.end()) return {};
    const auto end = ends_[static_cast<size_t>(first - reached.begin())];
    const auto count = std::count_if(reached.begin(), reached.end(), failed);
    const auto& interface = rails_[end.rank].interfaces[end.rail];
    return base::compose(
        {.what = rails_[rank_].addresses.size() == 1
                     ? "two machines do not reach each other"
                     : fmt::format("two machines do not reach each other over rail {}", end.rail),
         .where = fmt::format("from {}, to {}", describe({rank_, end.rail}), describe(end)),
         .evidence =
             first->fault +
             (count == 1 ? "" : fmt::format("; of {} such connections, {} failed", reached.size(), count)),
         .hint = fmt::format(
             "allow TCP connections between these addresses, in both directions (firewall, routes); "
             "if {} does not connect the machines, name the interfaces that do in "
             "LOCKSTEP_SOCKET_IFNAME",
             interface)});
  }

  // Gloo does not choose the interface of the connections that it makes, only the one to which it connects.
  void warn_about_routes(const std::vector<network::Reached>& reached) const {
    if (ranks_[rank_].network.variable.empty()) return;
    for (size_t i = 0; i < reached.size(); ++i) {
      const auto& own = rails_[rank_].addresses[ends_[i].rail];
      if (!reached[i].fault.empty() || reached[i].from == own) continue;
      base::log_warn(
          "connections to {} do not leave through {} {}, but from {}: give {} a route to that address",
          describe(ends_[i]), rails_[rank_].interfaces[ends_[i].rail], own, reached[i].from,
          rails_[rank_].interfaces[ends_[i].rail]);
      return;
    }
  }

  const int rank_;
  const std::vector<RankFacts>& ranks_;
  const std::vector<Rails>& rails_;
  std::optional<network::Responder> responder_;
  std::vector<network::Target> targets_;
  std::vector<End> ends_;  // of the targets
};

}  // namespace

network::Rails rails_of(int rank, const std::vector<RankFacts>& ranks) { return choose(ranks).at(rank); }

void check_rails(KeyStore& store, int rank, const std::vector<RankFacts>& ranks, base::Deadline deadline) {
  const auto rails = choose(ranks);
  const auto those = representatives(ranks, rails);
  if (those.size() == 1) return;
  const auto own = store.under("rails");
  const int world_size = static_cast<int>(ranks.size());
  Check check(rank, ranks, rails);
  const bool represents = std::find(those.begin(), those.end(), rank) != those.end();
  const auto fault = represents ? check.run(*own, those, deadline) : "";
  // When all have said what they found, nobody needs the responders any more.
  for (const auto& said : exchange(*own, rank, world_size, fault, deadline)) {
    if (said.empty()) continue;
    leave(*own, rank, world_size, within(kLeaveTime, deadline));
    throw SystemError(said);
  }
}

}  // namespace lockstep::rendezvous
