// Messages over wires: matched by tag, in order, whoever comes first; what happens when the other end is
// silent, slow, gone or hostile.
#include "wires/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <sys/socket.h>
#include <thread>

#include "base/net.h"

namespace lockstep::wires {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Notes what does not take the wires.
class OtherLink final : public comm::Link {
 public:
  comm::TransferPtr send(int, int, const std::byte*, size_t, Owner) override { return ++messages, nullptr; }
  comm::TransferPtr receive(int, int, std::byte*, size_t, Owner) override { return ++messages, nullptr; }
  void hang_up() noexcept override { hung_up = true; }
  int messages = 0;
  bool hung_up = false;
};

bool never() { return false; }

class WiresTest : public ::testing::Test {
 protected:
  WiresTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    raw_ = ends[1];
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<base::Fd> sockets(3);  // rank 2 is reached over the other link
      sockets[1 - rank] = base::Fd(ends[rank]);
      others_[rank] = std::make_shared<OtherLink>();
      links_[rank] = std::make_unique<Link>(std::move(sockets), others_[rank], 2s);
    }
  }
  comm::TransferPtr send(int from, int tag, const std::string& text) {
    return links_[from]->send(1 - from, tag, reinterpret_cast<const std::byte*>(text.data()), text.size(),
                              {});
  }
  // Receives on rank `at` from the other one.
  std::string receive(int at, int tag, size_t bytes) {
    std::string text(bytes, '?');
    links_[at]->receive(1 - at, tag, reinterpret_cast<std::byte*>(text.data()), bytes, {})->wait(never);
    return text;
  }
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }

  int raw_;  // the socket of rank 1
  std::array<std::shared_ptr<OtherLink>, 2> others_;
  std::array<std::unique_ptr<Link>, 2> links_;
};

TEST_F(WiresTest, MessagesAreMatchedByTagInTheirOrder) {
  send(0, 7, "first")->wait(never);
  send(0, 8, "other")->wait(never);
  send(0, 7, "second")->wait(never);
  EXPECT_EQ(receive(1, 8, 5), "other");
  EXPECT_EQ(receive(1, 7, 5), "first");
  EXPECT_EQ(receive(1, 7, 6), "second");
}

TEST_F(WiresTest, AReceiverMayBeFirst) {
  std::string one(3, '?'), two(3, '?');
  const auto place = [](std::string& text) { return reinterpret_cast<std::byte*>(text.data()); };
  const auto first = links_[1]->receive(0, 5, place(one), 3, {});
  const auto second = links_[1]->receive(0, 5, place(two), 3, {});
  std::thread sender([&] {
    std::this_thread::sleep_for(20ms);
    send(0, 5, "one");
    send(0, 5, "two");
  });
  second->wait(never);
  first->wait(never);
  sender.join();
  EXPECT_EQ(one + two, "onetwo");
}

TEST_F(WiresTest, LargeMessagesAndOtherRanksTakeTheOtherLink) {
  const std::string large(Link::kLargestBytes + 1, 'x');
  send(0, 1, large);
  EXPECT_EQ(others_[0]->messages, 1);
  links_[0]->send(2, 1, reinterpret_cast<const std::byte*>("x"), 1, {});
  EXPECT_EQ(others_[0]->messages, 2);
  const std::string largest(Link::kLargestBytes, 'x');
  send(0, 1, largest);
  EXPECT_EQ(others_[0]->messages, 2);
  EXPECT_EQ(receive(1, 1, largest.size()), largest);
}

// More than the sockets hold, in both directions, before anybody receives.
TEST_F(WiresTest, AFullSocketDelaysAndLosesNothing) {
  constexpr int kMessages = 200;
  const auto text_of = [](int from, int number) {
    return std::to_string(from) + std::string(8000, static_cast<char>('a' + number % 26));
  };
  std::array<std::thread, 2> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks[rank] = std::thread([&, rank] {
      std::vector<comm::TransferPtr> sending;
      for (int i = 0; i < kMessages; ++i) sending.push_back(send(rank, i % 3, text_of(rank, i)));
      for (int i = 0; i < kMessages; ++i) EXPECT_EQ(receive(rank, i % 3, 8001), text_of(1 - rank, i));
      for (const auto& transfer : sending) transfer->wait(never);
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST_F(WiresTest, ManyThreadsMayWait) {
  std::vector<std::thread> threads;
  for (int tag = 0; tag < 8; ++tag) {
    threads.emplace_back([&, tag] {
      for (int i = 0; i < 200; ++i) {
        send(0, tag, "ping");
        EXPECT_EQ(receive(1, tag, 4), "ping");
        send(1, tag, "pong");
        EXPECT_EQ(receive(0, tag, 4), "pong");
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(WiresTest, AWaitThatIsHopelessEnds) {
  std::byte room[4];
  const auto transfer = links_[1]->receive(0, 1, room, sizeof room, {});
  int asked = 0;
  EXPECT_EQ(error_of([&] { transfer->wait([&] { return ++asked == 2; }); }), "the wait was given up");
}

TEST_F(WiresTest, AWaitHasADeadline) {
  std::byte room[4];
  EXPECT_THAT(error_of([&] { links_[1]->receive(0, 1, room, sizeof room, {})->wait(never); }),
              HasSubstr("timed out"));
}

TEST_F(WiresTest, AClosedConnectionIsAnErrorAfterWhatHasArrived) {
  send(0, 1, "last");
  links_[0]->hang_up();
  EXPECT_TRUE(others_[0]->hung_up);
  EXPECT_EQ(receive(1, 1, 4), "last");
  EXPECT_THAT(error_of([&] { receive(1, 1, 4); }), HasSubstr("Connection closed by peer"));
  EXPECT_THAT(error_of([&] { send(1, 1, "late"); }), HasSubstr("Connection closed by peer"));
}

TEST_F(WiresTest, AnotherSizeThanAwaitedIsAnError) {
  send(0, 1, "four");
  EXPECT_THAT(error_of([&] { receive(1, 1, 5); }), HasSubstr("4 bytes arrived instead of one of 5"));
}

TEST_F(WiresTest, AnImpossibleHeaderEndsTheConnection) {
  const uint32_t header[] = {1, 0xffffffff};
  ASSERT_EQ(::send(raw_, header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  EXPECT_THAT(error_of([&] { receive(0, 1, 4); }), HasSubstr("announced a message of 4294967295 bytes"));
}

}  // namespace
}  // namespace lockstep::wires
