// What a rank offers, from invented machines: no network is involved.
#include "network/offer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lockstep::network {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Interface kLoopback{.name = "lo", .addresses = {"127.0.0.1", "::1"}};
const Interface kEth0{.name = "eth0", .addresses = {"10.0.0.3", "fd00::3", "fe80::3%eth0"}};
const Interface kEth1{.name = "eth1", .addresses = {"10.1.0.3"}};

// "eth0 10.0.0.3, eth0 fd00::3": the addresses of one rail; a star marks those on the route to the master.
std::string text(const OfferedRail& rail) {
  std::string all;
  for (const auto* local : {&rail.v4, &rail.v6}) {
    if (local->address.empty()) continue;
    all += (all.empty() ? "" : ", ") + local->interface + " " + local->address + (local->routed ? "*" : "");
  }
  return all;
}

std::vector<std::string> rails_of(const Offer& offer) {
  std::vector<std::string> all;
  for (const auto& rail : offer.rails) all.push_back(text(rail));
  return all;
}

View view(std::vector<Interface> interfaces, std::vector<Route> routes) {
  return {.interfaces = std::move(interfaces), .master = "node0", .routes = std::move(routes)};
}

TEST(Offer, TheInterfaceThatRoutesToTheMaster) {
  auto machine = view({kLoopback}, {{"10.0.0.3", "10.0.0.1"}});
  // Decoys before and after it, as a machine with containers has them.
  for (int i = 0; i < 20; ++i) {
    const auto number = std::to_string(i);
    machine.interfaces.push_back(
        {.name = "docker" + number,
         .up = i % 3 != 0,
         .carrier = i % 2 != 0,
         .addresses = {"172.17." + number + ".1", "fe80::" + number + "%docker" + number}});
    if (i == 10) machine.interfaces.push_back(kEth0);
  }
  const auto offer = make_offer(machine, {});
  EXPECT_THAT(rails_of(offer), ElementsAre("eth0 10.0.0.3*, eth0 fd00::3"));
  EXPECT_THAT(offer.reached, ElementsAre("10.0.0.1"));
  EXPECT_EQ(describe(offer),
            "eth0 10.0.0.3: routes to the master 10.0.0.1\n"
            "eth0 fd00::3: on the interface that routes to the master 10.0.0.1");
}

TEST(Offer, BothFamiliesIfBothRoute) {
  const auto offer =
      make_offer(view({kLoopback, kEth0, kEth1}, {{"fd00::3", "fd00::1"}, {"10.1.0.3", "10.1.0.1"}}), {});
  EXPECT_THAT(rails_of(offer), ElementsAre("eth1 10.1.0.3*, eth0 fd00::3*"));
}

TEST(Offer, TheOtherFamilyIsThatOfTheRoutedInterface) {
  EXPECT_THAT(rails_of(make_offer(view({kEth1, kEth0}, {{"fd00::3", "fd00::1"}}), {})),
              ElementsAre("eth0 10.0.0.3, eth0 fd00::3*"));
  EXPECT_THAT(rails_of(make_offer(view({kEth1, kEth0}, {{"10.1.0.3", "10.1.0.1"}}), {})),
              ElementsAre("eth1 10.1.0.3*"));
}

TEST(Offer, AnAddressOfTheLoopbackInterfaceThatOthersCanReach) {
  const Interface lo{.name = "lo", .addresses = {"127.0.0.1", "10.255.0.3"}};
  EXPECT_THAT(rails_of(make_offer(view({lo, kEth0}, {{"10.255.0.3", "10.255.0.1"}}), {})),
              ElementsAre("lo 10.255.0.3*"));
}

TEST(Offer, LinkLocalAddressesAreNotOffered) {
  const auto through_eth0 = make_offer(view({kEth0}, {{"fe80::3%eth0", "fe80::1%eth0"}}), {});
  EXPECT_THAT(rails_of(through_eth0), ElementsAre("eth0 10.0.0.3, eth0 fd00::3"));

  const Interface bare{.name = "eth2", .addresses = {"fe80::4%eth2"}};
  const auto only = make_offer(view({kLoopback, bare}, {{"fe80::4%eth2", "fe80::1%eth2"}}), {});
  EXPECT_FALSE(only.is_usable());
  EXPECT_THAT(only.problem.what, HasSubstr("no address with which Gloo can connect machines"));
  EXPECT_THAT(only.problem.evidence, HasSubstr("eth2 (fe80::4%eth2)"));
}

TEST(Offer, BehindALoopbackNameAllAddressesArePossible) {
  const auto offer = make_offer(view({kLoopback, kEth0, kEth1}, {{"127.0.0.1", "127.0.1.1"}}), {});
  EXPECT_TRUE(offer.at_master);
  EXPECT_THAT(offer.rails, IsEmpty());
  EXPECT_THAT(offer.reached, IsEmpty());
  EXPECT_TRUE(offer.is_usable());
  EXPECT_EQ(offer.locals.size(), 3u);
}

TEST(Offer, WithoutARoute) {
  auto machine = view({kLoopback, kEth0}, {});
  machine.why_no_route = "no route to 10.9.0.1";
  EXPECT_THAT(make_offer(machine, {}).problem.evidence, HasSubstr("master node0: no route to 10.9.0.1"));
  machine.master.clear();
  EXPECT_THAT(make_offer(machine, {}).problem.evidence, HasSubstr("do not meet at an address"));
  EXPECT_THAT(make_offer(machine, {}).problem.hint, HasSubstr("LOCKSTEP_SOCKET_IFNAME"));
}

TEST(Offer, NamedInterfacesAreRailsInTheirOrder) {
  const auto machine = view({kLoopback, kEth0, kEth1}, {{"10.0.0.3", "10.0.0.1"}});
  const auto offer = make_offer(machine, {"LOCKSTEP_SOCKET_IFNAME", "eth1, eth0"});
  EXPECT_THAT(rails_of(offer), ElementsAre("eth1 10.1.0.3", "eth0 10.0.0.3*, eth0 fd00::3"));
  EXPECT_THAT(offer.reached, ElementsAre("10.0.0.1"));
  EXPECT_THAT(describe(offer), HasSubstr("rail 0: eth1 10.1.0.3: named by LOCKSTEP_SOCKET_IFNAME"));
}

TEST(Offer, NamedInterfacesThatCannotBeUsed) {
  auto machine = view({kLoopback, kEth0, kEth1}, {{"10.0.0.3", "10.0.0.1"}});
  machine.interfaces.push_back({.name = "down0", .up = false, .carrier = false});
  machine.interfaces.push_back({.name = "off0", .carrier = false, .addresses = {"10.3.0.3"}});
  machine.interfaces.push_back({.name = "bare0"});
  machine.interfaces.push_back({.name = "link0", .addresses = {"fe80::3%link0"}});
  const struct {
    const char* names;
    const char* what;
  } cases[] = {
      {"eth7", "there is no network interface \"eth7\""},
      {"eth0,eth7", "there is no network interface \"eth7\""},
      {"10.0.0.3", "there is no network interface \"10.0.0.3\""},
      {"^docker0", "there is no network interface \"^docker0\""},
      {"eth0,", "there is no network interface \"\""},
      {"down0", "the network interface \"down0\" is down"},
      {"off0", "the network interface \"off0\" has no carrier"},
      {"bare0", "the network interface \"bare0\" has no address"},
      {"lo", "the network interface \"lo\" has only loopback addresses, which other machines cannot reach"},
      {"link0",
       "the network interface \"link0\" has only link-local addresses, with which Gloo cannot connect "
       "machines"},
  };
  for (const auto& [names, what] : cases) {
    const auto offer = make_offer(machine, {"GLOO_SOCKET_IFNAME", names});
    EXPECT_FALSE(offer.is_usable()) << names;
    EXPECT_EQ(offer.problem.what, what);
    EXPECT_THAT(offer.problem.evidence, HasSubstr("GLOO_SOCKET_IFNAME is \"" + std::string(names) + "\""));
    EXPECT_THAT(offer.problem.evidence, HasSubstr("eth0 (10.0.0.3, fd00::3, fe80::3%eth0), eth1 (10.1.0.3)"));
    EXPECT_THAT(offer.problem.evidence, HasSubstr("down0 (down)"));
  }
}

TEST(Offer, SurvivesTheStore) {
  for (const auto* names : {"", "eth0,eth1", "eth7"}) {
    for (const auto* from : {"10.0.0.3", "127.0.0.1"}) {
      const auto offer = make_offer(view({kLoopback, kEth0, kEth1}, {{from, "10.0.0.1"}}),
                                    {*names == '\0' ? "" : "LOCKSTEP_SOCKET_IFNAME", names});
      const auto read = offer_from_json(nlohmann::json::parse(to_json(offer).dump()));
      EXPECT_EQ(rails_of(read), rails_of(offer));
      EXPECT_EQ(read.reached, offer.reached);
      EXPECT_EQ(read.at_master, offer.at_master);
      EXPECT_EQ(read.locals.size(), offer.locals.size());
      EXPECT_EQ(read.variable, offer.variable);
      EXPECT_EQ(read.problem.evidence, offer.problem.evidence);
    }
  }
  EXPECT_THROW(offer_from_json(nlohmann::json::parse("{}")), nlohmann::json::exception);
}

TEST(Naming, OurVariableComesFirst) {
  ::unsetenv("LOCKSTEP_SOCKET_IFNAME");
  ::unsetenv("GLOO_SOCKET_IFNAME");
  EXPECT_EQ(naming_from_environment().variable, "");
  ::setenv("GLOO_SOCKET_IFNAME", "eth1", 1);
  EXPECT_EQ(naming_from_environment().names, "eth1");
  ::setenv("LOCKSTEP_SOCKET_IFNAME", "eth0", 1);
  EXPECT_EQ(naming_from_environment().names, "eth0");
  ::unsetenv("LOCKSTEP_SOCKET_IFNAME");
  ::unsetenv("GLOO_SOCKET_IFNAME");
}

TEST(View, KnowsThisMachine) {
  const auto here = view_towards("127.0.0.1");
  ASSERT_EQ(here.routes.size(), 1u);
  EXPECT_EQ(here.routes[0].from, "127.0.0.1");
  EXPECT_EQ(here.routes[0].to, "127.0.0.1");
  EXPECT_THAT(describe(here.interfaces), HasSubstr("lo (127.0.0.1"));
  const auto nowhere = view_towards("no-such-host.invalid");
  EXPECT_THAT(nowhere.routes, IsEmpty());
  EXPECT_THAT(nowhere.why_no_route, HasSubstr("does not resolve"));
}

}  // namespace
}  // namespace lockstep::network
