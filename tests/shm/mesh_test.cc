// How the ranks of one machine find and monitor each other, as threads and as processes.
#include "shm/mesh.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/error.h>

#include "shm/endpoint.h"
#include "support/message_of.h"
#include "support/run_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::shm {
namespace {

using ::lockstep::testing::message_of;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr size_t kSegmentBytes = 3 * 4096;
constexpr size_t kFree = Segment::kTableBytes;  // the first offset that tests may use
const std::atomic<bool> kNotCancelled{false};

StorePtr hash_store() { return c10::make_intrusive<c10d::HashStore>(); }

std::shared_ptr<Segment> new_segment() { return Segment::create("mesh_test", kSegmentBytes); }

std::unique_ptr<Mesh> new_mesh(const StorePtr& store, int rank, int world) {
  const auto segment = new_segment();
  return std::make_unique<Mesh>(store, rank, world, segment, segment);
}

void connect(Mesh& mesh, std::chrono::milliseconds budget = 20s) {
  mesh.connect(base::Deadline::in(budget), kNotCancelled);
}

void run_threads(int world, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&body, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

bool until(const std::function<bool()>& holds, std::chrono::milliseconds budget = 10s) {
  const auto deadline = base::Deadline::in(budget);
  while (!holds()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
  return count;
}

// The rendezvous of forked ranks; removed at the end of the test.
class MeetingFile {
 public:
  StorePtr open(int world) const {
    return c10::make_intrusive<c10d::FileStore>((folder_ / "store").string(), world);
  }

 private:
  testing::ScratchFolder folder_;
};

// A child process that ends with the test at the latest. The test decides when to reap it.
class Child {
 public:
  explicit Child(const std::function<int()>& body) {
    const pid_t parent = ::getpid();
    testing::let_own_threads_end();
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(99);
    int status = 98;
    try {
      status = body();
    } catch (const std::exception& error) {
      fmt::print(stderr, "child: {}\n", error.what());
    }
    std::fflush(nullptr);
    ::_exit(status);
  }
  Child(const Child&) = delete;
  ~Child() {
    kill();
    reap();
  }

  void kill() const {
    if (!reaped_) ::kill(pid_, SIGKILL);
  }
  // Waits for its end without reaping it.
  void wait() const {
    siginfo_t info = {};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
  }
  int reap() {
    if (!std::exchange(reaped_, true)) ::waitpid(pid_, &status_, 0);
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  int status_ = 0;
};

// The entry of a rank in the store, for tests that forge it.
nlohmann::json address_of(const StorePtr& store, int rank) {
  const auto bytes = store->get(fmt::format("shm/{}", rank));
  return nlohmann::json::parse(bytes.begin(), bytes.end());
}
void publish(const StorePtr& store, int rank, const nlohmann::json& address) {
  const auto text = address.dump();
  store->set(fmt::format("shm/{}", rank), std::vector<uint8_t>(text.begin(), text.end()));
}

class Worlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Mesh, Worlds, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(Worlds, ConnectAsThreads) {
  const int world = GetParam();
  const auto before = open_descriptors();
  {
    const auto store = hash_store();
    std::vector<std::shared_ptr<Segment>> segments;
    std::vector<std::unique_ptr<Mesh>> meshes;
    for (int rank = 0; rank < world; ++rank) {
      segments.push_back(new_segment());
      meshes.push_back(std::make_unique<Mesh>(store, rank, world, segments.back(), segments.back()));
    }
    run_threads(world, [&](int rank) { connect(*meshes[rank]); });
    for (int rank = 0; rank < world; ++rank) {
      auto& peers = meshes[rank]->peers();
      ASSERT_EQ(peers.size(), static_cast<size_t>(world));
      for (int other = 0; other < world; ++other) {
        EXPECT_EQ(peers[other].facts.rank, other);
        EXPECT_EQ(peers[other].facts.pid, ::getpid());
        EXPECT_EQ(peers[other].segment, segments[other]) << "one mapping in one process";
        EXPECT_EQ(static_cast<bool>(peers[other].socket), other != rank);
        EXPECT_FALSE(peers[other].process);
      }
      EXPECT_THAT(meshes[rank]->ended_ranks(), IsEmpty());
      EXPECT_THROW(connect(*meshes[rank]), UsageError);
    }
    // Sockets and segments only; no rank listens any more.
    EXPECT_EQ(open_descriptors(), before + world * (world - 1) + world);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(Worlds, ConnectAsProcesses) {
  const int world = GetParam();
  const MeetingFile file;
  lockstep::testing::expect_success(lockstep::testing::start_ranks(world, [&](int rank) {
    const auto mine = new_segment();
    Mesh mesh(file.open(world), rank, world, mine, mine);
    connect(mesh);
    const auto late = mine->add_extent(1 << 20);
    std::memset(mine->at(late, 100), rank + 1, 100);
    const auto word_of = [&](int other) {
      return std::atomic_ref(*reinterpret_cast<uint64_t*>(mesh.peers()[other].segment->at(kFree, 8)));
    };
    word_of(rank).store(late);
    for (int other = 0; other < world; ++other) {
      ASSERT_TRUE(until([&] { return word_of(other).load() != 0; }));
      const auto* bytes = mesh.peers()[other].segment->at(word_of(other).load(), 100);
      EXPECT_EQ(bytes[99], static_cast<std::byte>(other + 1));
      EXPECT_EQ(mesh.peers()[other].segment->owner(), other == rank);
      EXPECT_EQ(static_cast<bool>(mesh.peers()[other].process), other != rank);
    }
    EXPECT_THAT(mesh.ended_ranks(), IsEmpty());
    EXPECT_EQ(mesh.describe_end((rank + 1) % world), "");
    // No rank may leave while others check that all are present.
    auto here = std::atomic_ref(*reinterpret_cast<uint64_t*>(mesh.peers()[0].segment->at(kFree + 8, 8)));
    here.fetch_add(1);
    ASSERT_TRUE(until([&] { return here.load() == static_cast<uint64_t>(world); }));
  }));
}

TEST(Mesh, WhoLeavesAtOnceDoesNotDisturbTheOthers) {
  for (int round = 0; round < 30; ++round) {
    const auto store = hash_store();
    run_threads(4, [&](int rank) { connect(*new_mesh(store, rank, 4)); });
  }
  for (int round = 0; round < 5; ++round) {
    const MeetingFile file;
    lockstep::testing::expect_success(
        lockstep::testing::start_ranks(4, [&](int rank) { connect(*new_mesh(file.open(4), rank, 4)); }));
  }
}

TEST(Mesh, AThreadIsGoneWithItsMesh) {
  const auto store = hash_store();
  std::array<std::unique_ptr<Mesh>, 3> meshes;
  run_threads(3, [&](int rank) {
    meshes[rank] = new_mesh(store, rank, 3);
    connect(*meshes[rank]);
  });
  meshes[1].reset();
  EXPECT_THAT(meshes[0]->ended_ranks(), ElementsAre(1));
  EXPECT_THAT(meshes[2]->ended_ranks(), ElementsAre(1));
  EXPECT_EQ(meshes[0]->describe_end(1), "");
  // Its segment remains valid for the ranks that have mapped it.
  EXPECT_NO_THROW(meshes[0]->peers()[1].segment->at(kFree, 1));
}

// Rank 0 is the test itself. The others are children, which report that they are connected and then call
// `then`.
class Watched : public ::testing::Test {
 protected:
  void start(int world, const std::function<int(Mesh&)>& then) {
    mesh_ = new_mesh(file_.open(world), 0, world);
    for (int rank = 1; rank < world; ++rank) {
      children_.push_back(std::make_unique<Child>([&, rank] {
        mesh_.reset();
        const auto mesh = new_mesh(file_.open(world), rank, world);
        connect(*mesh);
        connected(*mesh).fetch_add(1);
        return then(*mesh);
      }));
    }
    connect(*mesh_);
    EXPECT_TRUE(until([&] { return connected(*mesh_).load() == static_cast<uint64_t>(world) - 1; }));
  }
  // The number of connected children, in rank 0's segment.
  static std::atomic_ref<uint64_t> connected(Mesh& mesh) {
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(mesh.peers()[0].segment->at(kFree, 8)));
  }

  MeetingFile file_;
  std::unique_ptr<Mesh> mesh_;
  std::vector<std::unique_ptr<Child>> children_;
};

int stay(Mesh&) {
  ::pause();
  return 0;
}

TEST_F(Watched, AKillIsSeenAtOnceAndNamed) {
  // Rank 2 watches too, and exits with 0 if it sees the same.
  start(3, [](Mesh& mesh) {
    if (mesh.peers()[1].segment->owner()) return stay(mesh);
    const bool seen = until([&] { return mesh.ended_ranks() == std::vector{1}; });
    const bool named = until([&] { return mesh.describe_end(1) == "killed by signal 9 (Killed)"; });
    return seen && named ? 0 : 1;
  });
  const auto before = Clock::now();
  children_[0]->kill();
  while (mesh_->ended_ranks().empty() && Clock::now() < before + 5s) std::this_thread::sleep_for(1ms);
  EXPECT_LT(Clock::now() - before, 100ms);
  children_[0]->wait();
  EXPECT_EQ(mesh_->describe_end(1), "killed by signal 9 (Killed)");
  children_[1]->wait();
  EXPECT_EQ(children_[1]->reap(), 0);
  EXPECT_THAT(mesh_->ended_ranks(), ElementsAre(1, 2));
  // After reaping, new kernels still report how it ended; old ones do not.
  children_[0]->reap();
  EXPECT_THAT(mesh_->describe_end(1), AnyOf("killed by signal 9 (Killed)", ""));
}

TEST_F(Watched, AnExitIsNamed) {
  start(2, [](Mesh&) { return 3; });
  children_[0]->wait();
  EXPECT_THAT(mesh_->ended_ranks(), ElementsAre(1));
  EXPECT_EQ(mesh_->describe_end(1), "exited with status 3");
  children_[0]->reap();
  EXPECT_THAT(mesh_->ended_ranks(), ElementsAre(1));
  EXPECT_THAT(mesh_->describe_end(1), AnyOf("exited with status 3", ""));
}

TEST_F(Watched, AnEndThatFollowsTheEndOfTheConnectionIsNamed) {
  start(2, [](Mesh& mesh) {
    ::shutdown(mesh.peers()[0].socket.get(), SHUT_RDWR);
    std::this_thread::sleep_for(50ms);  // as if the machine were busy
    return 3;
  });
  EXPECT_TRUE(until([&] { return mesh_->ended_ranks() == std::vector{1}; }));
  EXPECT_EQ(mesh_->describe_end(1, base::Deadline::in(20s)), "exited with status 3");
}

TEST_F(Watched, WatchingIsCheap) {
  start(7, stay);
  const auto before = Clock::now();
  for (int i = 0; i < 1000; ++i) EXPECT_THAT(mesh_->ended_ranks(), IsEmpty());
  EXPECT_LT(Clock::now() - before, 1s);
}

TEST(Mesh, ARankThatDiesBeforeItConnectsIsLostNotLate) {
  for (const bool reaped : {false, true}) {
    const MeetingFile file;
    const auto mesh = new_mesh(file.open(2), 0, 2);
    Child child([&] {
      const auto other = new_mesh(file.open(2), 1, 2);
      return 5;
    });
    child.wait();
    if (reaped) child.reap();
    const auto before = Clock::now();
    const auto message = message_of<PeerLostError>([&] { connect(*mesh); });
    EXPECT_LT(Clock::now() - before, 2s);
    EXPECT_THAT(message, HasSubstr("rank 1 (pid "));
    if (!reaped) {
      EXPECT_THAT(message, HasSubstr("exited with status 5"));
    }
  }
}

TEST(Mesh, ARankThatDiesWhileOthersAreMissingIsLostNotLate) {
  const MeetingFile file;
  auto mesh = new_mesh(file.open(3), 0, 3);
  Child child([&] {
    mesh.reset();
    const auto other = new_mesh(file.open(3), 1, 3);
    std::atomic<bool> cancelled{false};
    std::thread([&] {  // detached: it dies with the process
      std::this_thread::sleep_for(300ms);
      ::raise(SIGKILL);
    })
        .detach();
    other->connect(base::Deadline::in(20s), cancelled);  // rank 2 never arrives
    return 0;
  });
  const auto before = Clock::now();
  EXPECT_THAT(message_of<PeerLostError>([&] { connect(*mesh); }), HasSubstr("rank 1 (pid "));
  EXPECT_LT(Clock::now() - before, 5s);
}

TEST(Mesh, WhoNoLongerListensIsLost) {
  const auto store = hash_store();
  const auto late = new_mesh(store, 1, 2);
  { const auto early = new_mesh(store, 0, 2); }
  EXPECT_THAT(message_of<PeerLostError>([&] { connect(*late); }), HasSubstr("does not listen any more"));
}

TEST(Mesh, ATimeoutNamesTheMissing) {
  const auto store = hash_store();
  const auto before = Clock::now();
  std::atomic<int> late{0};
  run_threads(2, [&](int rank) {
    const auto mesh = new_mesh(store, rank, 5);
    // The slower rank may see that the other one has given up; that error names the missing ranks, too.
    const auto message = message_of<Error>([&] {
      try {
        connect(*mesh, 300ms);
      } catch (const TimeoutError& error) {
        ++late;
        EXPECT_THAT(error.what(), HasSubstr("missing: rank "));
        throw;
      }
    });
    EXPECT_THAT(message, HasSubstr("2-4"));
    EXPECT_THAT(message, HasSubstr(fmt::format("rank {}/5", rank)));
  });
  EXPECT_GE(late, 1);
  EXPECT_LT(Clock::now() - before, 2s);
}

TEST(Mesh, ATimeoutTellsWhoCameAndDidNotConnect) {
  const auto store = hash_store();
  const auto idle = new_mesh(store, 1, 2);
  const auto mesh = new_mesh(store, 0, 2);
  const auto message = message_of<TimeoutError>([&] { connect(*mesh, 100ms); });
  EXPECT_THAT(message, HasSubstr("missing: rank 1"));
  EXPECT_THAT(message, HasSubstr("published its address, but is not connected"));
}

// Connecting is a part of a longer call, whose deadline is not the group's timeout.
TEST(Mesh, AnEndpointConnectsUntilTheDeadlineOfItsCaller) {
  const auto endpoint = std::make_shared<Endpoint>(hash_store(), 0, 2, 1h, "a group");
  const auto message = message_of<TimeoutError>([&] { endpoint->connect(base::Deadline::in(200ms)); });
  EXPECT_THAT(message, AllOf(HasSubstr("within 0.2 s"), HasSubstr("missing: rank 1")));
}

TEST(Mesh, CanBeCancelled) {
  const auto mesh = new_mesh(hash_store(), 0, 2);
  std::atomic<bool> cancelled{false};
  Clock::time_point asked;
  std::thread canceller([&] {
    std::this_thread::sleep_for(100ms);
    asked = Clock::now();
    cancelled = true;
  });
  const auto message = message_of<Error>([&] { mesh->connect(base::Deadline::in(20s), cancelled); });
  const auto ended = Clock::now();
  canceller.join();
  EXPECT_LT(ended - asked, 100ms);
  EXPECT_THAT(message, HasSubstr("cancelled"));
}

TEST(Mesh, RefusesRanksThatDoNotBelongHere) {
  const auto refused = [](const std::function<void(nlohmann::json&)>& forge, auto expected) {
    const auto store = hash_store();
    const auto real = new_mesh(store, 1, 2);
    auto address = address_of(store, 1);
    forge(address);
    publish(store, 1, address);
    const auto mesh = new_mesh(store, 0, 2);
    return message_of<decltype(expected)>([&] { connect(*mesh); });
  };
  const auto change_facts = [](nlohmann::json& address, const char* name, const nlohmann::json& value) {
    auto facts = nlohmann::json::parse(address["facts"].get<std::string>());
    facts[name] = value;
    address["facts"] = facts.dump();
  };

  const auto elsewhere = refused(
      [&](auto& address) {
        change_facts(address, "machine", "another");
        change_facts(address, "host", "faraway");
      },
      UsageError(""));
  EXPECT_THAT(elsewhere, HasSubstr("faraway"));
  EXPECT_THAT(elsewhere, HasSubstr(rendezvous::facts_of_this_process(0, 2).host));
  EXPECT_THAT(elsewhere, HasSubstr("hint: use the backend gloo"));
  EXPECT_THAT(refused([](auto& address) { address["layout"] = kLayoutVersion + 1; }, MismatchError("")),
              HasSubstr("layout"));
  EXPECT_THAT(refused([&](auto& address) { change_facts(address, "world_size", 3); }, MismatchError("")),
              HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(refused([&](auto& address) { change_facts(address, "rank", 0); }, MismatchError("")),
              HasSubstr("in the place of rank 1"));
  EXPECT_THAT(refused([](auto& address) { address["user"] = ::geteuid() + 1; }, UsageError("")),
              HasSubstr("user"));
  EXPECT_THAT(refused([](auto& address) { address = {1, 2, 3}; }, MismatchError("")), HasSubstr("layout"));
}

// A process that found the socket.
base::Fd call(const std::string& name) {
  base::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) socket.reset();
  return socket;
}

// The bytes of a rank's handshake.
std::string handshake(int32_t rank, const std::string& token, uint32_t layout = kLayoutVersion) {
  std::string text = "lockstep";
  text.append(reinterpret_cast<const char*>(&layout), 4);
  text.append(reinterpret_cast<const char*>(&rank), 4);
  return text + token;
}

bool say(const base::Fd& socket, std::string text, std::vector<int> descriptors) {
  iovec words{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &words;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size() * sizeof(int));
  }
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL) >= 0;
}

bool is_turned_away(const base::Fd& socket) {
  pollfd polled{socket.get(), POLLIN, 0};
  char answer = 0;
  return ::poll(&polled, 1, 5000) > 0 && ::recv(socket.get(), &answer, 1, MSG_DONTWAIT) <= 0;
}

TEST(Mesh, StrangersAreTurnedAwayAndDoNotEndTheWait) {
  const auto before = open_descriptors();
  {
    const auto store = hash_store();
    const auto mesh = new_mesh(store, 0, 2);
    std::thread waiting([&] { EXPECT_NO_THROW(connect(*mesh)); });
    const std::string name = address_of(store, 0)["socket"];
    const std::string token = address_of(store, 0)["token"];
    EXPECT_EQ(name.size(), 9 + 32U);
    const auto segment = new_segment();
    const int memfd = segment->fd();
    const auto refused = [&](const std::string& text, const std::vector<int>& descriptors) {
      const auto socket = call(name);
      return socket && say(socket, text, descriptors) && is_turned_away(socket);
    };
    const auto silent = call(name);
    EXPECT_TRUE(silent);
    EXPECT_TRUE(refused(handshake(1, std::string(32, '0')), {memfd, memfd}));
    EXPECT_TRUE(refused(handshake(0, token), {memfd, memfd}));
    EXPECT_TRUE(refused(handshake(2, token), {memfd, memfd}));
    EXPECT_TRUE(refused(handshake(-1, token), {memfd, memfd}));
    EXPECT_TRUE(refused(handshake(1, token, kLayoutVersion + 1), {memfd, memfd}));
    EXPECT_TRUE(refused(handshake(1, token) + "x", {memfd, memfd}));
    EXPECT_TRUE(refused(handshake(1, token), {}));
    EXPECT_TRUE(refused(handshake(1, token), {memfd}));
    EXPECT_TRUE(refused(handshake(1, token), {memfd, memfd, memfd, memfd}));
    EXPECT_TRUE(refused("x", {}));
    call(name).reset();
    connect(*new_mesh(store, 1, 2));
    waiting.join();
    EXPECT_TRUE(is_turned_away(silent));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Mesh, OtherUsersAreTurnedAway) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  const auto store = hash_store();
  const auto mesh = new_mesh(store, 0, 2);
  const std::string name = address_of(store, 0)["socket"];
  const std::string token = address_of(store, 0)["token"];
  const auto segment = new_segment();
  Child child([&] {
    if (::setuid(65534) != 0) return 1;
    const auto socket = call(name);
    if (!socket) return 2;
    say(socket, handshake(1, token), {segment->fd(), segment->fd()});
    return is_turned_away(socket) ? 0 : 3;
  });
  EXPECT_THAT(message_of<TimeoutError>([&] { connect(*mesh, 1s); }), HasSubstr("missing: rank 1"));
  EXPECT_EQ(child.reap(), 0);
}

TEST(Mesh, DoesNotTalkToAnotherUsersSocket) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  const auto store = hash_store();
  const auto real = new_mesh(store, 0, 2);
  auto address = address_of(store, 0);
  address["socket"] = fmt::format("lockstep-mesh_test-{}", ::getpid());
  publish(store, 0, address);
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  Child impostor([&] {
    if (::setuid(65534) != 0) return 1;
    const std::string name = address["socket"];
    const base::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un there = {};
    there.sun_family = AF_UNIX;
    std::memcpy(there.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&there), length) != 0) return 2;
    if (::listen(socket.get(), 8) != 0) return 3;
    if (::write(ready[1], "x", 1) != 1) return 4;
    ::pause();
    return 0;
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto mesh = new_mesh(store, 1, 2);
  EXPECT_THAT(message_of<UsageError>([&] { connect(*mesh); }), HasSubstr("rank 0 runs as user 65534"));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(Mesh, AStoreThatFailsIsALostPeer) {
  struct Failing : c10d::HashStore {
    bool check(const std::vector<std::string>&) override { throw std::runtime_error("Connection reset"); }
  };
  const auto mesh = new_mesh(c10::make_intrusive<Failing>(), 0, 2);
  EXPECT_THAT(message_of<PeerLostError>([&] { connect(*mesh); }), HasSubstr("Connection reset"));
}

TEST(Mesh, TooFewDescriptorsAreNamed) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizers need descriptors of their own";
#endif
  // From almost none to enough: the limit is reached at each step in turn.
  Child child([] {
    const int world = 3;
    int refused = 0;
    for (rlim_t more = 0;; ++more) {
      const rlimit limit{open_descriptors() + more, 4096};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
      const auto before = open_descriptors();
      std::atomic<int> connected{0};
      std::atomic<int> named{0};
      {
        const auto store = hash_store();
        std::vector<std::unique_ptr<Mesh>> meshes;
        try {
          for (int rank = 0; rank < world; ++rank) meshes.push_back(new_mesh(store, rank, world));
        } catch (const SystemError& error) {
          named += std::strstr(error.what(), "ulimit -n") != nullptr;
          meshes.clear();
        }
        if (!meshes.empty()) {
          run_threads(world, [&](int rank) {
            try {
              connect(*meshes[rank], 300ms);
              ++connected;
            } catch (const SystemError& error) {
              named += std::strstr(error.what(), "ulimit -n") != nullptr;
            } catch (const Error&) {
              // A rank whose peer had too few.
            }
          });
        }
      }
      if (open_descriptors() != before) return 2;
      if (connected == world) return refused >= 6 ? 0 : 3;
      if (named == 0) return 4;
      ++refused;
      if (more > 100) return 5;
    }
  });
  EXPECT_EQ(child.reap(), 0);
}

TEST(Mesh, LeaksNoDescriptors) {
  new_mesh(hash_store(), 0, 1);  // opens what a process opens only once
  const auto before = open_descriptors();
  for (int round = 0; round < 50; ++round) {
    const auto store = hash_store();
    switch (round % 5) {
      case 0:
      case 1:
        run_threads(3, [&](int rank) { connect(*new_mesh(store, rank, 3)); });
        break;
      case 2:
        new_mesh(store, 0, 2);
        break;
      case 3:
        run_threads(2, [&](int rank) { EXPECT_THROW(connect(*new_mesh(store, rank, 3), 20ms), Error); });
        break;
      case 4: {
        const auto idle = new_mesh(store, 1, 2);
        publish(store, 1, {{"layout", 0}});
        EXPECT_THROW(connect(*new_mesh(store, 0, 2)), MismatchError);
      }
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace lockstep::shm
