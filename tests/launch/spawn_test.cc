#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <lockstep/error.h>
#include <lockstep/spawn.h>

#include "base/env.h"
#include "base/note.h"
#include "harness.h"
#include "launch/limits.h"

#ifdef __SANITIZE_THREAD__
// By default the sanitizer refuses threads in a child that was forked from a multithreaded process; a nested
// spawn needs them.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace lockstep::launch::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kMostRanks = 16;

// Results that the ranks pass to the test, in shared memory.
struct Board {
  std::atomic<int> started[kMostRanks];
  std::atomic<int> values[kMostRanks];
  std::atomic<int> pids[kMostRanks];
};

class SpawnTest : public LaunchTest {
 protected:
  void SetUp() override {
    LaunchTest::SetUp();
    ::setenv("LOCKSTEP_TEST_MARK", mark_.c_str(), 1);
    void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    board_ = new (memory) Board{};
  }
  void TearDown() override {
    // The ranks are forked and not executed, so /proc does not show the mark in their environment. spawn()
    // has waited for all of them.
    for (const auto& pid : board_->pids) {
      if (pid != 0) {
        EXPECT_FALSE(alive(pid)) << pid;
      }
    }
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    ::munmap(board_, sizeof(Board));
    LaunchTest::TearDown();
  }
  void here(int rank) {
    board_->pids[rank] = ::getpid();
    board_->started[rank] = 1;
  }
  // Waits until all ranks are running, so that a failure finds ranks to stop.
  void meet(int ranks) {
    eventually([&] {
      for (int rank = 0; rank < ranks; ++rank) {
        if (board_->started[rank] == 0) return false;
      }
      return true;
    });
  }
  template <class Kind>
  std::string caught(int nprocs, const std::function<void(int)>& body) {
    try {
      spawn(nprocs, body);
    } catch (const Kind& error) {
      EXPECT_EQ(typeid(error), typeid(Kind));
      return error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "another error: " << error.what();
    }
    return "";
  }
  [[noreturn]] static void hang() {
    for (;;) ::pause();
  }

  Board* board_ = nullptr;
};

TEST_F(SpawnTest, RunsEachRankWithItsEnvironment) {
  spawn(3, [&](int rank) {
    here(rank);
    const bool right = base::env_int("RANK") == rank && base::env_int("LOCAL_RANK") == rank &&
                       base::env_int("WORLD_SIZE") == 3 && base::env_int("LOCAL_WORLD_SIZE") == 3 &&
                       base::env_string("MASTER_ADDR") == "127.0.0.1" &&
                       base::env_int("MASTER_PORT", 1, 65535) && base::env_int("GROUP_RANK") == 0 &&
                       base::env_string("TORCHELASTIC_USE_AGENT_STORE") == "False";
    board_->values[rank] = right ? 100 + rank : -1;
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(board_->values[rank], 100 + rank);
  EXPECT_EQ(std::getenv("RANK"), nullptr);
  EXPECT_EQ(std::getenv("LOCKSTEP_NOTE_FD"), nullptr);
}

TEST_F(SpawnTest, ARankMayOpenAsManyFilesAsTheHardLimitAllows) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto most = std::min<rlim_t>(before.rlim_max, kMostWorkerFiles);
  if (most < 300) GTEST_SKIP() << "the hard limit of open files is too low here";
  const rlimit low{most - 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  spawn(1, [&](int rank) {
    here(rank);
    board_->values[rank] = static_cast<int>(::sysconf(_SC_OPEN_MAX));
  });
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(board_->values[0], static_cast<int>(most));
}

TEST_F(SpawnTest, EightRanks) {
  spawn(8, [&](int rank) {
    here(rank);
    board_->values[rank] = 1;
  });
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(board_->values[rank], 1);
}

TEST_F(SpawnTest, EachOfOurErrorsKeepsItsClass) {
  const auto raise = [&](auto error) {
    return [this, error](int rank) {
      here(rank);
      if (rank == 1) throw error;
    };
  };
  const std::string wanted = "rank 1 of 2 failed: words\nhint: do";
  EXPECT_EQ(caught<UsageError>(2, raise(UsageError("words\nhint: do"))), wanted);
  EXPECT_EQ(caught<MismatchError>(2, raise(MismatchError("words\nhint: do"))), wanted);
  EXPECT_EQ(caught<PeerLostError>(2, raise(PeerLostError("words\nhint: do"))), wanted);
  EXPECT_EQ(caught<TimeoutError>(2, raise(TimeoutError("words\nhint: do"))), wanted);
  EXPECT_EQ(caught<SnapshotError>(2, raise(SnapshotError("words\nhint: do"))), wanted);
  EXPECT_EQ(caught<SystemError>(2, raise(SystemError("words\nhint: do"))), wanted);
  EXPECT_EQ(caught<Error>(2, raise(Error("words\nhint: do"))), wanted);
}

TEST_F(SpawnTest, AForeignExceptionIsNamed) {
  EXPECT_EQ(caught<Error>(2,
                          [&](int rank) {
                            here(rank);
                            if (rank == 0) throw std::out_of_range("index 7");
                          }),
            "rank 0 of 2 failed: std::out_of_range: index 7");
  EXPECT_EQ(caught<Error>(1, [&](int) { throw 42; }),
            "rank 0 of 1 failed: int: an exception that is not a std::exception");
}

TEST_F(SpawnTest, AKilledRank) {
  const auto text = caught<PeerLostError>(3, [&](int rank) {
    here(rank);
    meet(3);
    if (rank == 2) ::raise(SIGKILL);
    hang();
  });
  EXPECT_NE(text.find("rank 2 of 3 failed (host "), std::string::npos) << text;
  EXPECT_NE(text.find(fmt::format("pid {}): its process was killed by signal 9 (Killed)\nhint: ",
                                  board_->pids[2].load())),
            std::string::npos)
      << text;
}

TEST_F(SpawnTest, ARankThatExits) {
  const auto text = caught<PeerLostError>(2, [&](int rank) {
    here(rank);
    meet(2);
    if (rank == 1) ::_exit(3);
    hang();
  });
  EXPECT_NE(text.find("its process exited with status 3"), std::string::npos) << text;
}

TEST_F(SpawnTest, TheCauseIsThrownNotItsConsequence) {
  const auto text = caught<MismatchError>(3, [&](int rank) {
    here(rank);
    meet(3);
    if (rank == 0) throw PeerLostError("rank 1 is gone");
    if (rank == 1) {
      eventually([&] { return !alive(board_->pids[0]); });
      throw MismatchError("shapes differ");
    }
    hang();
  });
  EXPECT_EQ(text, "rank 1 of 3 failed: shapes differ");
}

TEST_F(SpawnTest, ARankThatEndsEarlyIsNamed) {
  const auto text = caught<PeerLostError>(3, [&](int rank) {
    here(rank);
    meet(3);
    if (rank == 1) return;
    if (rank == 2) hang();
    eventually([&] { return !alive(board_->pids[1]); });
    base::write_note({"PeerLostError", "rank 1 is gone", {1}});
    ::_exit(1);
  });
  EXPECT_EQ(text,
            "rank 1 of 3 ended with status 0 while the others were still working: it made fewer steps; rank "
            "0 reported: rank 1 is gone");
}

// It stays a zombie for a few seconds, but not until another rank ends.
TEST_F(SpawnTest, ARankThatHasEndedIsReapedWhileOthersRun) {
  spawn(2, [&](int rank) {
    here(rank);
    meet(2);
    if (rank == 0) return;
    board_->values[1] = eventually([&] { return ::kill(board_->pids[0], 0) != 0; }) ? 1 : 0;
  });
  EXPECT_EQ(board_->values[1], 1);
}

TEST_F(SpawnTest, ARankThatDoesNotAnswerIsNamed) {
  const auto text = caught<TimeoutError>(2, [&](int rank) {
    here(rank);
    meet(2);
    if (rank == 1) hang();
    base::write_note({"TimeoutError", "late", {1}});
    ::_exit(1);
  });
  EXPECT_EQ(text, "rank 1 of 2 did not answer; rank 0 reported: late");
}

TEST_F(SpawnTest, TheRanksShareATokenOfTheirOwn) {
  ::setenv("LOCKSTEP_TOKEN_FILE", "/nonexistent", 1);
  const auto token_hash = [] {
    return static_cast<int>(std::hash<std::string>()(*base::env_string("LOCKSTEP_TOKEN")));
  };
  for (const int first : {0, 2}) {
    spawn(2, [&](int rank) {
      here(rank);
      if (!base::env_string("LOCKSTEP_TOKEN_FILE")) board_->values[first + rank] = token_hash();
    });
  }
  ::unsetenv("LOCKSTEP_TOKEN_FILE");
  EXPECT_EQ(std::getenv("LOCKSTEP_TOKEN"), nullptr);
  EXPECT_NE(board_->values[0], 0);
  EXPECT_EQ(board_->values[0], board_->values[1]);
  EXPECT_EQ(board_->values[2], board_->values[3]);
  EXPECT_NE(board_->values[0], board_->values[2]);
}

TEST_F(SpawnTest, BadNumbersOfRanks) {
  for (const int bad : {0, -1, 1000000}) {
    EXPECT_NE(caught<UsageError>(bad, [](int) {}).find(fmt::format("spawn cannot start {} processes", bad)),
              std::string::npos);
  }
  EXPECT_THROW(spawn(1, nullptr), UsageError);
}

TEST_F(SpawnTest, NestedSpawn) {
  spawn(2, [&](int outer) {
    here(outer);
    spawn(2, [&](int inner) {
      if (base::env_int("RANK") == inner && base::env_int("WORLD_SIZE") == 2)
        board_->values[2 * outer + inner] = 1;
    });
    board_->values[8 + outer] = base::env_int("RANK") == outer ? 1 : 0;
  });
  for (const int i : {0, 1, 2, 3, 8, 9}) EXPECT_EQ(board_->values[i], 1) << i;
}

TEST_F(SpawnTest, AnErrorInANestedSpawnIsRethrownByTheOuter) {
  EXPECT_EQ(caught<TimeoutError>(2,
                                 [&](int outer) {
                                   here(outer);
                                   if (outer == 1)
                                     spawn(2, [](int inner) {
                                       if (inner == 0) throw TimeoutError("late");
                                     });
                                 }),
            "rank 1 of 2 failed: rank 0 of 2 failed: late");
}

TEST_F(SpawnTest, OtherChildrenOfTheProgramAreLeftAlone) {
  const pid_t mine = ::fork();
  if (mine == 0) ::_exit(5);
  spawn(2, [&](int rank) { here(rank); });
  int status = 0;
  EXPECT_EQ(::waitpid(mine, &status, 0), mine);
  EXPECT_EQ(WEXITSTATUS(status), 5);
}

TEST_F(SpawnTest, BufferedOutputIsWrittenOnce) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::fflush(stdout);
  const int saved = ::dup(STDOUT_FILENO);
  ::dup2(ends[1], STDOUT_FILENO);
  std::printf("before ");
  spawn(2, [&](int rank) { std::printf("rank%d ", rank); });
  std::fflush(stdout);
  ::dup2(saved, STDOUT_FILENO);
  ::close(saved);
  ::close(ends[1]);
  char bytes[256] = {};
  ASSERT_GT(::read(ends[0], bytes, sizeof bytes - 1), 0);
  ::close(ends[0]);
  const std::string text = bytes;
  EXPECT_EQ(count(text, "before "), 1U) << text;
  EXPECT_EQ(count(text, "rank0 "), 1U) << text;
  EXPECT_EQ(count(text, "rank1 "), 1U) << text;
}

TEST_F(SpawnTest, RanksDieWithTheirParent) {
  const pid_t parent = ::fork();
  if (parent == 0) {
    try {
      spawn(2, [&](int rank) {
        here(rank);
        hang();
      });
    } catch (...) {
    }
    ::_exit(0);
  }
  meet(2);
  ::kill(parent, SIGKILL);
  EXPECT_EQ(::waitpid(parent, nullptr, 0), parent);
  EXPECT_TRUE(eventually([&] { return !alive(board_->pids[0]) && !alive(board_->pids[1]); }, 5s));
}

TEST_F(SpawnTest, IgnoredSigchldIsRefused) {
  std::signal(SIGCHLD, SIG_IGN);
  EXPECT_NE(caught<UsageError>(1, [](int) {}).find("SIGCHLD"), std::string::npos);
  std::signal(SIGCHLD, SIG_DFL);
}

}  // namespace
}  // namespace lockstep::launch::testing
