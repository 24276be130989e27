// The store: its values, its admission of clients, its news of ranks that end, and its defence against
// hostile callers.
#include <csignal>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>

#include <lockstep/error.h>

#include "base/net.h"
#include "base/port.h"
#include "store/client.h"
#include "store/protocol.h"
#include "store/server.h"
#include "store/table.h"
#include "store/wire.h"
#include "support/message_of.h"

namespace lockstep::store {
namespace {

using base::Deadline;
using lockstep::testing::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::in(20s); }

// An address with a port that nobody else uses during the test: the port is part of the Unix socket's name.
Address own_address() {
  static const base::PortReservation reservation(base::Reach::ThisMachine);
  static uint16_t next = reservation.port();
  Address address = Address::on_this_machine(next);
  static int made = 0;
  address.name += "/test" + std::to_string(::getpid()) + "/" + std::to_string(++made);
  return address;
}

class Store : public ::testing::Test {
 protected:
  explicit Store(base::Token token = {}) : token_(std::move(token)) {
    std::vector<base::Fd> listeners;
    listeners.push_back(listen_at(address_));
    server_ = std::make_unique<Server>(std::move(listeners), token_);
  }
  std::unique_ptr<Client> client(int rank) {
    return std::make_unique<Client>(address_, token_, rank, soon());
  }

  // Waits until `holds` returns true, after news from the server.
  template <class Holds>
  static bool comes_true(Holds&& holds) {
    for (const auto deadline = soon(); !deadline.expired(); std::this_thread::sleep_for(1ms)) {
      if (holds()) return true;
    }
    return false;
  }

  const Address address_ = own_address();
  const base::Token token_;
  std::unique_ptr<Server> server_;
};

TEST(Wire, ReadsWhatWasWrittenAndNothingElse) {
  const auto frame = Writer().number(-7).text("a\0b").texts({"", "x"}).frame();
  Frames frames;
  // Byte by byte, as a network may deliver the frame.
  for (size_t i = 0; i + 1 < frame.size(); ++i) {
    frames.add(&frame[i], 1);
    EXPECT_FALSE(frames.next(1000));
  }
  frames.add(&frame.back(), 1);
  const auto content = frames.next(1000);
  ASSERT_TRUE(content);
  Reader reader(*content);
  EXPECT_EQ(reader.number(), -7);
  EXPECT_EQ(reader.text(), "a");
  EXPECT_THROW(reader.end(), Malformed);
  EXPECT_THAT(reader.texts(), ElementsAre("", "x"));
  reader.end();
  EXPECT_THROW(reader.number(), Malformed);
}

TEST(Wire, ImpossibleLengthsAreRejectedBeforeAllocation) {
  const auto announce = [](int64_t size) { return Writer().number(size).frame().substr(4); };
  EXPECT_THROW(Reader(announce(INT64_MAX)).text(), Malformed);
  EXPECT_THROW(Reader(announce(-1)).text(), Malformed);
  EXPECT_THROW(Reader(announce(INT64_MAX)).texts(), Malformed);
  EXPECT_THROW(Reader(announce(1)).texts(), Malformed);
  Frames frames;
  frames.add("\xff\xff\xff\xff", 4);
  EXPECT_THROW(frames.next(1000), Malformed);
}

TEST(Table, ForgetsAPrefixAfterTheLastRelease) {
  Table table;
  table.set("a/1", "x");
  table.set("a/2", "y");
  table.set("a", "stays");
  table.set("ab", "stays");
  EXPECT_FALSE(table.forget("a/", 2));
  EXPECT_EQ(table.count(), 4);
  EXPECT_TRUE(table.forget("a/", 2));
  EXPECT_EQ(table.count(), 2);
  EXPECT_FALSE(table.forget("a/", 2)) << "the releases were not reset";
}

TEST_F(Store, KeepsValues) {
  const auto one = client(0);
  const auto other = client(1);
  one->set("key", std::string("a\0b", 3), soon());
  EXPECT_THAT(other->get({"key"}, soon(), {}), ElementsAre(std::string("a\0b", 3)));
  EXPECT_EQ(other->add("n", 3, soon()), 3);
  EXPECT_EQ(one->add("n", -5, soon()), -2);
  EXPECT_TRUE(one->check({"key", "n"}, soon()));
  EXPECT_FALSE(one->check({"key", "m"}, soon()));
  EXPECT_EQ(one->compare_set("new", "", "v", soon()), "v");
  EXPECT_EQ(one->compare_set("new", "other", "w", soon()), "v");
  EXPECT_EQ(one->compare_set("new", "v", "w", soon()), "w");
  EXPECT_EQ(one->count(soon()), 3);
  EXPECT_TRUE(one->erase("key", soon()));
  EXPECT_FALSE(one->erase("key", soon()));
}

TEST_F(Store, WaitsForKeysAndGivesUpInTime) {
  const auto one = client(0);
  const auto other = client(1);
  std::thread later([&] { one->set("late", "here", soon()); });
  EXPECT_THAT(other->get({"late"}, soon(), {}), ElementsAre("here"));
  later.join();
  EXPECT_THAT(message_of<TimeoutError>([&] { other->get({"never"}, Deadline::in(50ms), {}); }),
              AllOf(HasSubstr("rank 1"), HasSubstr("did not appear"), HasSubstr("hint:")));
  // The connection is still usable.
  EXPECT_EQ(other->add("n", 1, soon()), 1);
}

TEST_F(Store, ReportsLostRanks) {
  const auto watcher = client(0);
  auto killed = client(1);
  std::atomic<int> heard = 0;
  const auto subscription = watcher->subscribe([&] { ++heard; });
  killed.reset();  // its connection closes without Bye
  EXPECT_TRUE(comes_true([&] { return watcher->ended().contains(1) && heard > 0; }));
  EXPECT_EQ(watcher->ended().at(1).how, Ending::Lost);
  watcher->unsubscribe(subscription);
  // A client that connects later gets the news, too.
  const auto late = client(2);
  EXPECT_TRUE(comes_true([&] { return late->ended().contains(1); }));
}

TEST_F(Store, AProcessThatReturnsZeroHasLeftAndAnyOtherIsLost) {
  const auto watcher = client(0);
  const auto end_with = [&](int rank, const std::function<void()>& how) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto* own = new Client(address_, token_, rank, soon());
      own->set("here", "", soon());
      how();
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
  };
  end_with(1, [] { std::exit(0); });
  end_with(2, [] { std::exit(3); });
  end_with(3, [] { ::raise(SIGKILL); });
  EXPECT_TRUE(comes_true([&] { return watcher->ended().size() == 3; }));
  EXPECT_EQ(watcher->ended().at(1).how, Ending::Left);
  EXPECT_EQ(watcher->ended().at(2).how, Ending::Lost);
  EXPECT_EQ(watcher->ended().at(3).how, Ending::Lost);
}

TEST_F(Store, AForkedChildNeitherActsForItsParentNorHidesItsEnd) {
  const auto watcher = client(0);
  auto parent = client(1);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      parent->set("from", "child", soon());
      ::_exit(1);
    } catch (const UsageError&) {
      // Destroying the child's copy must not close the parent's connection either.
      parent.reset();
      ::write(ready[1], "x", 1);
      ::pause();
    }
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_FALSE(watcher->check({"from"}, soon()));
  parent->set("from", "parent", soon());
  EXPECT_TRUE(watcher->ended().empty());
  parent.reset();  // the child still runs, but has no copy of the socket
  EXPECT_TRUE(comes_true([&] { return watcher->ended().contains(1); }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(Store, TheEndOfTheServerIsDetectedAtOnceAndCostsNothing) {
  const auto one = client(1);
  std::thread waiting([&] {
    EXPECT_THAT(message_of<PeerLostError>([&] { one->get({"never"}, soon(), {}); }),
                AllOf(HasSubstr("the store where the ranks meet is gone"), HasSubstr("hint:")));
  });
  comes_true([&] { return one->add("n", 0, soon()) == 0; });
  server_.reset();
  waiting.join();
  EXPECT_EQ(one->ended().at(kHostRank).how, Ending::Lost);
  EXPECT_THROW(one->set("key", "value", soon()), PeerLostError);
  // No thread busily polls a closed socket.
  const auto cpu = [] {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  };
  const auto before = cpu();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(cpu() - before, 200ms);
}

TEST_F(Store, TheFirstFailureOfATopicIsSentToAll) {
  const auto one = client(1);
  const auto other = client(2);
  one->fail("group/", "out of memory");
  EXPECT_TRUE(comes_true([&] { return other->failure("group/").has_value(); }));
  EXPECT_EQ(other->failure("group/")->rank, 1);
  EXPECT_EQ(other->failure("group/")->text, "out of memory");
  EXPECT_FALSE(other->failure("another/"));
  other->fail("group/", "because of rank 1");
  EXPECT_EQ(one->count(soon()), 0);
  EXPECT_EQ(one->failure("group/")->text, "out of memory");
}

// A server that accepts connections and sends nothing, like a stopped rank 0.
TEST(NotAStore, SilenceIsATimeout) {
  const auto address = own_address();
  const auto listener = listen_at(address);
  const auto start = Deadline::Clock::now();
  EXPECT_THAT(message_of<TimeoutError>([&] { Client(address, {}, 1, Deadline::in(300ms)); }),
              HasSubstr("does not answer"));
  EXPECT_LT(Deadline::Clock::now() - start, 10s);
}

TEST(NotAStore, AnotherProtocolIsAMismatch) {
  const auto address = own_address();
  const auto listener = listen_at(address);
  std::thread other([&] {
    pollfd waiting{listener.get(), POLLIN, 0};
    ::poll(&waiting, 1, 20'000);
    const base::Fd caller(::accept(listener.get(), nullptr, nullptr));
    ::send(caller.get(), "SSH-2.0-OpenSSH_9.2p1\r\n", 23, MSG_NOSIGNAL);
    char byte;
    ::recv(caller.get(), &byte, 1, 0);
  });
  EXPECT_THAT(message_of<MismatchError>([&] { Client(address, {}, 1, soon()); }),
              AllOf(HasSubstr("not a store of lockstep"), HasSubstr("MASTER_PORT")));
  other.join();
}

class GuardedStore : public Store {
 protected:
  GuardedStore() : Store(base::Token::random()) {}
};

TEST_F(GuardedStore, AdmitsOnlyClientsWithTheToken) {
  const auto one = client(0);
  one->set("secret", "42", soon());
  for (const auto& token : {base::Token(), base::Token::random()}) {
    EXPECT_THAT(message_of<MismatchError>([&] { Client(address_, token, 1, soon()); }),
                AllOf(HasSubstr("token"), HasSubstr("LOCKSTEP_TOKEN")));
  }
  EXPECT_TRUE(one->ended().empty()) << "a stranger counted as a rank";
}

// Resident memory in MiB.
int64_t resident() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * ::sysconf(_SC_PAGESIZE) >> 20;
}

TEST_F(GuardedStore, StrangersUseNoMemoryAndDelayNobody) {
  const auto before = resident();
  const auto hostile = [&](std::string bytes, int times) {
    auto socket = connect_to(address_, soon());
    for (int i = 0; i < times; ++i) {
      if (::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 && errno != EAGAIN) break;
    }
    return socket;
  };
  std::vector<base::Fd> strangers;
  strangers.push_back(hostile(std::string("\x00\x00\x00\x7f"
                                          "aaaaa",
                                          9),
                              1));  // announces 2 GiB
  strangers.push_back(hostile("a", 1));
  strangers.push_back(hostile(std::string(1 << 16, '\n'), 1000));
  strangers.push_back(hostile(Writer().number(int64_t{1} << 62).text("").text("").frame(), 1));
  // More silent connections than the server keeps.
  for (int i = 0; i < 400; ++i) strangers.push_back(connect_to(address_, soon()));
  const auto one = client(1);
  one->set("key", "value", soon());
  EXPECT_THAT(one->get({"key"}, soon(), {}), ElementsAre("value"));
  EXPECT_LT(resident() - before, 64);
}

TEST_F(Store, RequestsOfMembersAreLimitedToo) {
  const auto one = client(1);
  EXPECT_THROW(one->set("key", std::string(kMostFrameBytes, 'x'), soon()), UsageError);
  EXPECT_FALSE(one->check({"key"}, soon()));
}

}  // namespace
}  // namespace lockstep::store
