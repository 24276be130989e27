// The check whether machines reach each other, over loopback: with responders, and with programs in their
// place.
#include "network/reach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <thread>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/net.h"
#include "base/port.h"
#include "network/view.h"

namespace lockstep::network {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Fd;
using base::Token;
using ::testing::HasSubstr;

const auto kSoon = 300ms;
const auto kLong = 60s;

std::vector<Reached> reach(const std::vector<Target>& targets) {
  return try_to_reach(targets, Deadline::in(kLong), Deadline::in(kLong));
}

Fd connect_to(uint16_t port) { return base::connect_to("127.0.0.1", port, Deadline::in(kLong)); }

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses{"127.0.0.1", "127.0.0.2"};
  for (const auto& interface : view_towards("").interfaces) {
    for (const auto& address : interface.addresses) {
      if (address == "::1") addresses.push_back(address);
    }
  }
  return addresses;
}

TEST(Reach, AResponderAnswersAtAllItsAddresses) {
  const auto addresses = own_addresses();
  const auto secret = Token::random();
  const Responder responder(addresses, secret);
  ASSERT_EQ(responder.ports().size(), addresses.size());
  std::vector<Target> targets;
  for (size_t i = 0; i < 100 * addresses.size(); ++i) {
    const auto at = i % addresses.size();
    targets.push_back({addresses[at], responder.ports()[at], secret});
  }
  const auto all = reach(targets);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].fault, "");
    EXPECT_EQ(base::is_ipv6(all[i].from), base::is_ipv6(targets[i].address));
  }
}

TEST(Reach, NobodyListens) {
  const base::PortReservation free(base::Reach::ThisMachine);
  EXPECT_THAT(reach({{"127.0.0.1", free.port(), Token::random()}})[0].fault, HasSubstr("Connection refused"));
}

TEST(Reach, AResponderOfAnotherJob) {
  const Responder responder({"127.0.0.1"}, Token::random());
  EXPECT_THAT(reach({{"127.0.0.1", responder.ports()[0], Token::random()}})[0].fault,
              HasSubstr("not part of this job"));
}

TEST(Reach, AProgramThatSendsSomethingElse) {
  const auto listener = base::listen_on(base::Reach::ThisMachine, 0);
  std::thread program([&] {
    const Fd closes(::accept(listener.get(), nullptr, nullptr));
    Fd(::accept(listener.get(), nullptr, nullptr)).reset();
    const Fd talks(::accept(listener.get(), nullptr, nullptr));
    const std::string greeting(200, '0');
    EXPECT_EQ(::send(talks.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL), 200);
    char byte = 0;
    while (::recv(talks.get(), &byte, 1, 0) > 0) continue;
  });
  const auto port = base::local_port(listener);
  const Target target{"127.0.0.1", port, Token::random()};
  const auto silent = try_to_reach({target}, Deadline::in(kLong), Deadline::in(kSoon));
  EXPECT_THAT(silent[0].fault, HasSubstr("connected, but there was no answer within 0.3 s"));
  EXPECT_THAT(reach({target})[0].fault, HasSubstr("not part of this job"));
  EXPECT_THAT(reach({target})[0].fault, HasSubstr("not part of this job"));
  program.join();
}

TEST(Reach, AConnectionThatNobodyAccepts) {
  // A full backlog drops requests, as a firewall does.
  const auto listener = base::bind_socket(base::Reach::ThisMachine, 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const auto port = base::local_port(listener);
  const auto fills = connect_to(port);
  const auto reached =
      try_to_reach({{"127.0.0.1", port, Token::random()}}, Deadline::in(kSoon), Deadline::in(kLong));
  EXPECT_THAT(reached[0].fault, HasSubstr("no connection within 0.3 s"));
}

TEST(Reach, StrangersDoNotDelayTheResponder) {
  const auto secret = Token::random();
  const Responder responder({"127.0.0.1"}, secret);
  std::vector<Fd> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(connect_to(responder.ports()[0]));
  for (int i = 0; i < 20; ++i) ::send(strangers[i].get(), "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL);
  EXPECT_EQ(reach({{"127.0.0.1", responder.ports()[0], secret}})[0].fault, "");
}

TEST(Reach, AnAddressOfAnotherMachine) {
  EXPECT_THROW(Responder({"127.0.0.1", "192.0.2.1"}, Token::random()), SystemError);
}

}  // namespace
}  // namespace lockstep::network
