// The choice for a group, from invented machines: no network is involved.
#include "network/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/error.h>

#include "support/message_of.h"

namespace lockstep::network {
namespace {

using lockstep::testing::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A machine whose interface eth0 has these addresses, of which `routed` are on a route to the master.
Offer offer(std::vector<std::string> addresses, std::vector<std::string> routed,
            std::vector<std::string> reached) {
  View view{.interfaces = {{.name = "lo", .addresses = {"127.0.0.1", "::1"}},
                           {.name = "docker0", .addresses = {"172.17.0.1"}},
                           {.name = "eth0", .addresses = std::move(addresses)}},
            .master = "node0"};
  for (size_t i = 0; i < routed.size(); ++i) view.routes.push_back({routed[i], reached[i]});
  return make_offer(view, {});
}

// A machine with the master behind a loopback name.
Offer master(std::vector<std::string> addresses) {
  return offer(std::move(addresses), {"127.0.0.1"}, {"127.0.1.1"});
}

Offer named(std::vector<Interface> interfaces, const std::string& names) {
  return make_offer({.interfaces = std::move(interfaces)}, {"LOCKSTEP_SOCKET_IFNAME", names});
}

// One rank on each machine.
std::vector<Member> machines(std::vector<Offer> offers) {
  std::vector<Member> members;
  for (auto& one : offers) {
    const auto number = std::to_string(members.size());
    members.push_back({"rank " + number + " (host node" + number + ")", "machine " + number, std::move(one)});
  }
  return members;
}

std::vector<std::string> addresses(const std::vector<Member>& members) {
  std::vector<std::string> all;
  for (const auto& rails : choose_rails(members)) {
    std::string text;
    for (const auto& address : rails.addresses) text += (text.empty() ? "" : " ") + address;
    all.push_back(text);
  }
  return all;
}

TEST(Choose, LoopbackOnOneMachine) {
  auto members = machines({offer({"10.0.0.1"}, {"10.0.0.1"}, {"10.0.0.1"}), named({}, "nope0")});
  members[1].machine = members[0].machine;
  EXPECT_THAT(addresses(members), ElementsAre("127.0.0.1", "127.0.0.1"));
  EXPECT_EQ(describe(choose_rails(members)[0]), "loopback 127.0.0.1: all ranks are on this machine");
}

TEST(Choose, IPv4IfAllRouteOverBothFamilies) {
  const std::vector<std::string> master_addresses{"fd00::1", "10.0.0.1"};
  const auto members = machines({offer({"10.0.0.1", "fd00::1"}, master_addresses, master_addresses),
                                 offer({"10.0.0.2", "fd00::2"}, {"fd00::2", "10.0.0.2"}, master_addresses)});
  EXPECT_THAT(addresses(members), ElementsAre("10.0.0.1", "10.0.0.2"));
  const auto chosen = choose_rails(members);
  EXPECT_EQ(describe(chosen[0]), "eth0 10.0.0.1: the master's address");
  EXPECT_EQ(describe(chosen[1]), "eth0 10.0.0.2: routes to the master 10.0.0.1");
}

TEST(Choose, IPv6IfOneMachineHasNothingElse) {
  // The master has a name with both families; the third machine routes to one of its addresses only.
  const std::vector<std::string> both{"10.0.0.1", "fd00::1"};
  EXPECT_THAT(addresses(machines({offer(both, both, both),
                                  offer({"10.0.0.2", "fd00::2"}, {"10.0.0.2", "fd00::2"}, both),
                                  offer({"fd00::3"}, {"fd00::3"}, {"fd00::1"})})),
              ElementsAre("fd00::1", "fd00::2", "fd00::3"));
  EXPECT_THAT(addresses(machines({offer({"fd00::1"}, {"fd00::1"}, {"fd00::1"}),
                                  offer({"fd00::2"}, {"fd00::2"}, {"fd00::1"})})),
              ElementsAre("fd00::1", "fd00::2"));
}

TEST(Choose, TheFamilyOfTheMasterIfAllHaveBoth) {
  // Only IPv6 is known to connect the machines.
  EXPECT_THAT(addresses(machines({offer({"10.0.0.1", "fd00::1"}, {"fd00::1"}, {"fd00::1"}),
                                  offer({"10.9.0.2", "fd00::2"}, {"fd00::2"}, {"fd00::1"})})),
              ElementsAre("fd00::1", "fd00::2"));
}

TEST(Choose, AnUnroutedFamilyIfItIsTheOnlyOneInCommon) {
  // Two machines met the master over IPv4, but Gloo needs what the third one has, too.
  const auto chosen = choose_rails(machines({offer({"10.0.0.1", "fd00::1"}, {"10.0.0.1"}, {"10.0.0.1"}),
                                             offer({"10.0.0.2", "fd00::2"}, {"10.0.0.2"}, {"10.0.0.1"}),
                                             offer({"fd00::3"}, {"fd00::3"}, {"fd00::1"})}));
  EXPECT_EQ(describe(chosen[1]), "eth0 fd00::2: on the interface that routes to the master 10.0.0.1");
}

TEST(Choose, AtTheMasterWhereTheOthersReachIt) {
  auto members =
      machines({master({"10.0.0.1", "10.0.0.100", "fd00::1"}), master({"10.0.0.1", "10.0.0.100", "fd00::1"}),
                offer({"10.0.0.2"}, {"10.0.0.2"}, {"10.0.0.100"})});
  members[1].machine = members[0].machine;
  EXPECT_THAT(addresses(members), ElementsAre("10.0.0.100", "10.0.0.100", "10.0.0.2"));
  EXPECT_EQ(describe(choose_rails(members)[1]), "eth0 10.0.0.100: where other machines reach the master");

  EXPECT_THAT(
      addresses(machines({master({"10.0.0.1", "fd00::1"}), offer({"fd00::2"}, {"fd00::2"}, {"fd00::1"})})),
      ElementsAre("fd00::1", "fd00::2"));

  // They reach it through an address that is not its own.
  EXPECT_THAT(
      message_of<UsageError>([] {
        choose_rails(machines({master({"10.0.0.1"}), offer({"10.5.0.2"}, {"10.5.0.2"}, {"192.0.2.1"})}));
      }),
      AllOf(HasSubstr("rank 0 (host node0)"), HasSubstr("reach the master at 192.0.2.1"),
            HasSubstr("docker0 172.17.0.1, eth0 10.0.0.1"), HasSubstr("LOCKSTEP_SOCKET_IFNAME")));
}

TEST(Choose, RailsByTheirOrder) {
  const auto members = machines(
      {named({{.name = "a0", .addresses = {"10.0.0.1"}}, {.name = "a1", .addresses = {"10.1.0.1"}}}, "a0,a1"),
       named({{.name = "b0", .addresses = {"10.1.0.2"}}, {.name = "b1", .addresses = {"10.0.0.2"}}},
             "b1,b0")});
  EXPECT_THAT(addresses(members), ElementsAre("10.0.0.1 10.1.0.1", "10.0.0.2 10.1.0.2"));
  EXPECT_EQ(describe(choose_rails(members)[1]),
            "b1 10.0.0.2: named by LOCKSTEP_SOCKET_IFNAME; b0 10.1.0.2: named by LOCKSTEP_SOCKET_IFNAME");
}

TEST(Choose, EachRailHasTheFamilyThatItCan) {
  EXPECT_THAT(addresses(machines({named({{.name = "a0", .addresses = {"10.0.0.1", "fd00::1"}},
                                         {.name = "a1", .addresses = {"fd01::1"}}},
                                        "a0,a1"),
                                  named({{.name = "b0", .addresses = {"10.0.0.2"}},
                                         {.name = "b1", .addresses = {"10.1.0.2", "fd01::2"}}},
                                        "b0,b1")})),
              ElementsAre("10.0.0.1 fd01::1", "10.0.0.2 fd01::2"));
}

TEST(Choose, OneMachineMayNameWhatAnotherRoutesThrough) {
  EXPECT_THAT(addresses(machines({offer({"10.0.0.1"}, {"10.0.0.1"}, {"10.0.0.1"}),
                                  named({{.name = "b0", .addresses = {"10.0.0.2", "fd00::2"}}}, "b0")})),
              ElementsAre("10.0.0.1", "10.0.0.2"));
}

TEST(Choose, DifferentNumbersOfRails) {
  EXPECT_THAT(message_of<MismatchError>([] {
                choose_rails(machines({offer({"10.0.0.1"}, {"10.0.0.1"}, {"10.0.0.1"}),
                                       named({{.name = "b0", .addresses = {"10.0.0.2"}},
                                              {.name = "b1", .addresses = {"10.1.0.2"}}},
                                             "b0,b1")}));
              }),
              AllOf(HasSubstr("rank 0 (host node0) has 1 (eth0), rank 1 (host node1) has 2 (b0, b1)"),
                    HasSubstr("in the same order")));
}

TEST(Choose, NoCommonFamily) {
  EXPECT_THAT(
      message_of<UsageError>([] {
        choose_rails(machines(
            {named({{.name = "a0", .addresses = {"10.0.0.1"}}, {.name = "a1", .addresses = {"10.1.0.1"}}},
                   "a0,a1"),
             named({{.name = "b0", .addresses = {"10.0.0.2"}}, {.name = "b1", .addresses = {"fd01::2"}}},
                   "b0,b1")}));
      }),
      AllOf(HasSubstr("(rail 1)"), HasSubstr("rank 1 (host node1) has no IPv4 address on b1, only fd01::2"),
            HasSubstr("rank 0 (host node0) has no IPv6 address on a1, only 10.1.0.1")));
}

TEST(Choose, AProblemOfAnyRankIsThatOfAll) {
  EXPECT_THAT(message_of<UsageError>([] {
                choose_rails(machines({offer({"10.0.0.1"}, {"10.0.0.1"}, {"10.0.0.1"}),
                                       named({{.name = "b0", .addresses = {"10.0.0.2"}}}, "eth0")}));
              }),
              AllOf(HasSubstr("there is no network interface \"eth0\" (rank 1 (host node1))"),
                    HasSubstr("LOCKSTEP_SOCKET_IFNAME is \"eth0\"; the machine has b0 (10.0.0.2)"),
                    HasSubstr("hint: name interfaces")));
}

TEST(Choose, ARankThatOffersNothing) {
  EXPECT_THAT(message_of<UsageError>([] {
                choose_rails(machines({offer({"10.0.0.1"}, {"10.0.0.1"}, {"10.0.0.1"}), Offer{}}));
              }),
              HasSubstr("the interface that connects the machines is unknown (rank 1 (host node1))"));
}

TEST(Choose, ProblemsOfSeveralMachinesInOneMessage) {
  EXPECT_THAT(message_of<UsageError>([] {
                const Interface no_carrier{.name = "eth0", .carrier = false};
                const Interface down{.name = "eth0", .up = false};
                choose_rails(machines({named({no_carrier}, "eth0"), named({down}, "eth0")}));
              }),
              AllOf(HasSubstr("\"eth0\" has no carrier (rank 0 (host node0))"),
                    HasSubstr("; rank 1 (host node1): the network interface \"eth0\" is down")));
}

TEST(Choose, TheSameAddressOnTwoMachines) {
  const std::vector<Interface> container{{.name = "docker0", .addresses = {"172.17.0.1"}}};
  EXPECT_THAT(message_of<UsageError>([&] {
                choose_rails(machines({named(container, "docker0"), named(container, "docker0")}));
              }),
              AllOf(HasSubstr("two machines have the same address, 172.17.0.1"),
                    HasSubstr("rank 0 (host node0) and rank 1 (host node1)"), HasSubstr("docker0")));
  // Ranks of one machine share it.
  auto members = machines({named({{.name = "a0", .addresses = {"10.0.0.1"}}}, "a0"),
                           named({{.name = "a0", .addresses = {"10.0.0.1"}}}, "a0"),
                           named({{.name = "b0", .addresses = {"10.0.0.2"}}}, "b0")});
  members[1].machine = members[0].machine;
  EXPECT_THAT(addresses(members), ElementsAre("10.0.0.1", "10.0.0.1", "10.0.0.2"));
}

}  // namespace
}  // namespace lockstep::network
