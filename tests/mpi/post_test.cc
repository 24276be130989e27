// Messages between two processes of an MPI job: matched by tag, in order, whoever comes first; what happens
// when the other end is silent, slow or gone. mpirun runs the same tests in both processes (tests/mpi/post).
#include "module/post.h"

#include <array>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/wire_tags.h"

namespace lockstep::mpi {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr size_t kMostBytes = 100'000;  // longer messages are divided
constexpr auto kTimeout = 30s;

bool never() { return false; }
int own_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
void meet() { MPI_Barrier(MPI_COMM_WORLD); }

std::unique_ptr<Post> another_post() {
  MPI_Comm own = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &own);
  auto post = std::make_unique<Post>(kMostBytes);
  post->open(own);
  return post;
}

// Of most tests.
Post& post() {
  static auto* const instance = another_post().release();
  return *instance;
}

Party party_of(uint64_t id, std::chrono::milliseconds timeout = kTimeout) {
  return {.id = id, .rank = own_rank(), .world_ranks = {0, 1}, .timeout = timeout};
}

std::vector<std::byte> bytes_of(size_t count, int salt) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + salt) % 256);
  return bytes;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const comm::LinkError& error) {
    return "rank " + std::to_string(error.peer) + ": " + error.what();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

class PostTest : public ::testing::Test {
 protected:
  PostTest() : member_(join(next_id())) {}
  ~PostTest() override {
    meet();
    post().leave(*member_);
  }

  static uint64_t next_id() {
    static uint64_t last = 0;
    return ++last;
  }
  static Post::MemberPtr join(uint64_t id, std::chrono::milliseconds timeout = kTimeout) {
    return post().join(party_of(id, timeout));
  }
  static comm::TransferPtr send(const Post::MemberPtr& member, int tag, const std::vector<std::byte>& bytes,
                                comm::Link::Owner owner = {}) {
    return post().send(member, 1 - own_rank(), tag, bytes.data(), bytes.size(), std::move(owner));
  }
  static comm::TransferPtr ask(const Post::MemberPtr& member, int tag, std::vector<std::byte>& room,
                               comm::Link::Owner owner = {}) {
    return post().receive(member, 1 - own_rank(), tag, room.data(), room.size(), std::move(owner));
  }
  std::vector<std::byte> receive(int tag, size_t count) const {
    std::vector<std::byte> room(count);
    ask(member_, tag, room)->wait(never);
    return room;
  }

  const int rank_ = own_rank();
  const Post::MemberPtr member_;
};

// Inside the note, just outside of it, in one piece, in several.
constexpr std::array kSizes = {size_t{1}, Post::kShortBytes, Post::kShortBytes + 1, kMostBytes,
                               3 * kMostBytes + 7};

TEST_F(PostTest, MessagesOfAllSizesArriveInBothDirections) {
  std::vector<std::vector<std::byte>> sent;
  for (const auto size : kSizes) sent.push_back(bytes_of(size, rank_));
  std::vector<comm::TransferPtr> sending;
  for (const auto& bytes : sent) sending.push_back(send(member_, 5, bytes));
  for (const auto size : kSizes) EXPECT_EQ(receive(5, size), bytes_of(size, 1 - rank_));
  for (const auto& transfer : sending) transfer->wait(never);
}

TEST_F(PostTest, MessagesAreMatchedByTagInTheirOrder) {
  // MPI's own tags are much smaller in some networks.
  for (const int other : {8, comm::kFingerprintTag, comm::part_tag(0xffffffff, 63)}) {
    for (const size_t size : {size_t{4}, kMostBytes}) {
      const auto first = bytes_of(size, 1), second = bytes_of(size, 2), third = bytes_of(size, 3);
      if (rank_ == 0) {
        const auto a = send(member_, 7, first), b = send(member_, other, second), c = send(member_, 7, third);
        for (const auto* transfer : {&a, &b, &c}) (*transfer)->wait(never);
      } else {
        EXPECT_EQ(receive(other, size), second);
        EXPECT_EQ(receive(7, size), first);
        EXPECT_EQ(receive(7, size), third);
      }
    }
  }
}

TEST_F(PostTest, AReceiverMayBeFirst) {
  if (rank_ == 1) {
    std::vector<std::byte> one(10), two(50'000);
    const auto first = ask(member_, 5, one), second = ask(member_, 5, two);
    meet();
    second->wait(never);
    first->wait(never);
    EXPECT_EQ(one, bytes_of(10, 1));
    EXPECT_EQ(two, bytes_of(50'000, 2));
  } else {
    meet();
    const auto one = bytes_of(10, 1), two = bytes_of(50'000, 2);
    const auto first = send(member_, 5, one), second = send(member_, 5, two);
    first->wait(never);
    second->wait(never);
  }
}

TEST_F(PostTest, GroupsDoNotMeet) {
  const auto other = join(next_id());
  const auto mine = bytes_of(20'000, 1), others = bytes_of(20'000, 2);
  if (rank_ == 0) {
    const auto a = send(other, 3, others), b = send(member_, 3, mine);
    a->wait(never);
    b->wait(never);
  } else {
    EXPECT_EQ(receive(3, mine.size()), mine);
    std::vector<std::byte> room(others.size());
    ask(other, 3, room)->wait(never);
    EXPECT_EQ(room, others);
  }
  meet();
  post().leave(*other);
}

TEST_F(PostTest, AGroupMayBeLate) {
  const auto id = next_id();
  const auto bytes = bytes_of(20'000, 4);
  Post::MemberPtr late;
  if (rank_ == 0) {
    late = join(id);
    const auto sending = send(late, 3, bytes);
    send(member_, 1, bytes_of(1, 0))->wait(never);
    sending->wait(never);
  } else {
    receive(1, 1);  // the note of the other message has arrived before
    late = join(id);
    std::vector<std::byte> room(bytes.size());
    ask(late, 3, room)->wait(never);
    EXPECT_EQ(room, bytes);
  }
  meet();
  post().leave(*late);
}

TEST_F(PostTest, ManyThreadsMayWait) {
  std::vector<std::thread> threads;
  for (int tag = 0; tag < 6; ++tag) {
    threads.emplace_back([this, tag] {
      const auto bytes = bytes_of(tag % 2 == 0 ? 100 : 10'000, tag);
      for (int i = 0; i < 100; ++i) {
        const auto sending = send(member_, tag, bytes);
        EXPECT_EQ(receive(tag, bytes.size()), bytes);
        sending->wait(never);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(PostTest, WhatNobodyWaitsForMovesNevertheless) {
  const auto bytes = bytes_of(kMostBytes, 5);
  if (rank_ == 0) {
    const auto sending = send(member_, 1, bytes);
    std::thread([] {
      int taken = 0;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Irecv(nullptr, 0, MPI_BYTE, 1, 99, MPI_COMM_WORLD, &request);
      while (taken == 0 && post().tend()) MPI_Test(&request, &taken, MPI_STATUS_IGNORE);
    }).join();
    sending->wait(never);
  } else {
    EXPECT_EQ(receive(1, bytes.size()), bytes);
    MPI_Send(nullptr, 0, MPI_BYTE, 0, 99, MPI_COMM_WORLD);
  }
}

TEST_F(PostTest, AWaitThatIsHopelessEnds) {
  std::vector<std::byte> room(4);
  const auto transfer = ask(member_, 1, room);
  int asked = 0;
  EXPECT_EQ(error_of([&] { transfer->wait([&] { return ++asked == 2; }); }), "the wait was given up");
}

TEST_F(PostTest, AWaitHasADeadline) {
  const auto hurried = join(next_id(), 200ms);
  std::vector<std::byte> room(4);
  EXPECT_EQ(error_of([&] { ask(hurried, 1, room)->wait(never); }), "timed out after 200 ms");
  meet();
  post().leave(*hurried);
}

// The memory of a transfer that was given up is kept until MPI does not use it any more.
TEST_F(PostTest, OwnersLiveAsLongAsMpiUsesTheirMemory) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(bytes_of(3 * kMostBytes, 6));
  if (rank_ == 0) {
    std::weak_ptr<std::vector<std::byte>> memory;
    {
      const auto own = std::make_shared<std::vector<std::byte>>(*bytes);
      memory = own;
      const auto sending = send(member_, 1, *own, own);
      EXPECT_EQ(error_of([&] { sending->wait([] { return true; }); }), "the wait was given up");
    }
    EXPECT_FALSE(memory.expired());
    meet();
    while (!memory.expired()) post().tend();
  } else {
    meet();
    EXPECT_EQ(receive(1, bytes->size()), *bytes);
  }
}

TEST_F(PostTest, ARankThatHangsUpIsAnErrorAfterWhatItHasSent) {
  const auto doomed = join(next_id());
  const auto bytes = bytes_of(50'000, 1);
  if (rank_ == 0) {
    const auto sending = send(doomed, 1, bytes);
    meet();
    post().hang_up(*doomed);
    EXPECT_EQ(error_of([&] { send(doomed, 1, bytes); }), "this rank has closed its connections");
  } else {
    std::vector<std::byte> room(bytes.size());
    meet();
    const auto awaited = ask(doomed, 1, room), never_sent = ask(doomed, 2, room);
    EXPECT_EQ(error_of([&] { never_sent->wait(never); }), "rank 0: Connection closed by peer");
    awaited->wait(never);
    EXPECT_EQ(room, bytes);
    EXPECT_EQ(error_of([&] { ask(doomed, 3, room); }), "rank 0: Connection closed by peer");
    EXPECT_EQ(error_of([&] { send(doomed, 3, room); }), "rank 0: Connection closed by peer");
  }
  EXPECT_EQ(post().in_trouble(), rank_ == 0);
  meet();
  post().leave(*doomed);
  EXPECT_EQ(post().in_trouble(), rank_ == 0);
}

// It may never finalise MPI.
TEST_F(PostTest, ALostRankIsTroubleAlsoWhenTheGroupIsGone) {
  Post own;  // no MPI is needed for that
  bool lost = false;
  const auto member = [&](uint64_t id) {
    auto party = party_of(id);
    party.has_lost_rank = [&lost] { return lost; };
    return own.join(std::move(party));
  };
  const auto first = member(1), second = member(2);
  own.leave(*first);
  EXPECT_FALSE(own.in_trouble());
  lost = true;
  own.leave(*second);
  lost = false;
  EXPECT_TRUE(own.in_trouble());
}

TEST_F(PostTest, AnotherSizeThanAwaitedIsAnError) {
  for (const auto size : {size_t{100}, size_t{20'000}}) {
    const auto doomed = join(next_id());
    const auto bytes = bytes_of(size, 1);
    if (rank_ == 0) {
      send(doomed, 1, bytes)->wait(never);  // the other rank discards it
    } else {
      std::vector<std::byte> room(50);
      EXPECT_EQ(error_of([&] { ask(doomed, 1, room)->wait(never); }),
                "a message of " + std::to_string(size) + " bytes arrived instead of one of 50");
    }
    meet();
    post().leave(*doomed);
  }
}

// A rank that sends to a group that has left elsewhere does not wait for ever.
TEST_F(PostTest, WhatALateRankSendsIsDiscarded) {
  const auto doomed = join(next_id());
  const auto bytes = bytes_of(3 * kMostBytes, 1);
  if (rank_ == 1) post().leave(*doomed);
  meet();
  if (rank_ == 0) {
    // Whether the news has arrived already is not determined.
    EXPECT_THAT(error_of([&] { send(doomed, 1, bytes)->wait(never); }),
                ::testing::AnyOf("no error", "rank 1: Connection closed by peer"));
    send(member_, 1, bytes_of(1, 0))->wait(never);
    post().leave(*doomed);
  } else {
    receive(1, 1);
  }
}

// Both ranks end while they have a group, in which one of them has not asked for what the other one has sent.
TEST_F(PostTest, WhoEndsTakesWhatNobodyHasAskedFor) {
  const auto ending = another_post();
  const auto bytes = bytes_of(3 * kMostBytes, 1);
  const auto group = ending->join(party_of(1));
  comm::TransferPtr sending;
  if (rank_ == 0) sending = ending->send(group, 1, 5, bytes.data(), bytes.size(), {});
  ending->close();
  if (sending) sending->wait(never);
  std::vector<std::byte> room(bytes.size());
  EXPECT_EQ(error_of([&] { ending->receive(group, 1 - rank_, 5, room.data(), room.size(), {}); }),
            "MPI has been finalised");
  ending->leave(*group);
}

// Also in a group that this rank has not joined.
TEST_F(PostTest, WhoEndsTakesWhatIsForALaterGroup) {
  const auto ending = another_post();
  const auto bytes = bytes_of(3 * kMostBytes, 1);
  const auto group = ending->join(party_of(1));
  comm::TransferPtr sending;
  std::byte room{};
  if (rank_ == 0) {
    const auto late = ending->join(party_of(2));
    sending = ending->send(late, 1, 5, bytes.data(), bytes.size(), {});
    ending->send(group, 1, 1, bytes.data(), 1, {})->wait(never);
    ending->leave(*late);
  } else {
    // The note of the other message has arrived before.
    ending->receive(group, 0, 1, &room, 1, {})->wait(never);
  }
  ending->leave(*group);
  meet();
  ending->close();
  if (sending) sending->wait(never);
}

}  // namespace
}  // namespace lockstep::mpi

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  lockstep::mpi::post();  // on both ranks at once, before any other
  const int status = RUN_ALL_TESTS();
  MPI_Barrier(MPI_COMM_WORLD);
  lockstep::mpi::post().close();
  MPI_Finalize();
  return status;
}
