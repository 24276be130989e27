#include "launch/children.h"

#include <chrono>
#include <csignal>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::launch {
namespace {

pid_t start(int status) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(status);
  return pid;
}

pid_t start_stopped() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  return pid;
}

void await_end(pid_t pid) {
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
}

bool is_zombie(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

TEST(Children, AnEndIsReturnedOnceWithItsNote) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  base::Fd reading(ends[0]);
  const base::Fd writing(ends[1]);
  const auto bytes = base::encode_note({"UsageError", "no such batch"});
  ASSERT_EQ(::write(writing.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));

  Children children;
  const pid_t failed = start(7), killed = start_stopped();
  children.add({.rank = 5, .local_rank = 1, .pid = failed, .note = std::move(reading)});
  children.add({.rank = 4, .local_rank = 0, .pid = killed});
  EXPECT_EQ(children.running_ranks(), (std::vector<int>{4, 5}));

  await_end(failed);
  EXPECT_EQ(children.take_ended(), (std::vector{RankEnd{.rank = 5,
                                                        .local_rank = 1,
                                                        .pid = failed,
                                                        .wait_status = as_wait_status(7),
                                                        .note = base::Note{"UsageError", "no such batch"}}}));
  EXPECT_EQ(children.running_ranks(), std::vector<int>{4});
  EXPECT_TRUE(children.take_ended().empty());

  children.signal_leaders(SIGKILL);
  await_end(killed);
  EXPECT_EQ(children.take_ended(),
            (std::vector{RankEnd{.rank = 4, .local_rank = 0, .pid = killed, .wait_status = SIGKILL}}));
  EXPECT_TRUE(children.empty());
  children.reap();
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

// The ranks that are still running read there how it ended.
TEST(Children, OneThatEndedStaysAZombieWhileOthersRun) {
  Children children;
  const pid_t ended = start(3), running = start_stopped();
  children.add({.rank = 0, .pid = ended});
  children.add({.rank = 1, .pid = running});
  await_end(ended);
  ASSERT_EQ(children.take_ended().size(), 1U);
  EXPECT_TRUE(children.reap());
  EXPECT_TRUE(is_zombie(ended));

  ::kill(running, SIGKILL);
  await_end(running);
  ASSERT_EQ(children.take_ended().size(), 1U);
  EXPECT_FALSE(children.reap());
  EXPECT_FALSE(is_zombie(ended));
  EXPECT_FALSE(is_zombie(running));
}

TEST(Children, OneThatHasBeenReadableIsReapedWhileOthersRun) {
  Children children(std::chrono::milliseconds(0));
  const pid_t ended = start(3), running = start_stopped();
  children.add({.rank = 0, .pid = ended});
  children.add({.rank = 1, .pid = running});
  await_end(ended);
  ASSERT_EQ(children.take_ended().size(), 1U);
  EXPECT_TRUE(is_zombie(ended));
  EXPECT_FALSE(children.reap());
  EXPECT_FALSE(is_zombie(ended));
  EXPECT_EQ(children.running_ranks(), std::vector<int>{1});

  ::kill(running, SIGKILL);
  await_end(running);
  ASSERT_EQ(children.take_ended().size(), 1U);
  EXPECT_FALSE(children.reap());
}

TEST(Children, OneThatSomebodyElseHasWaitedForHasFailed) {
  Children children;
  const pid_t pid = start(0);
  children.add({.rank = 0, .pid = pid});
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  const auto ends = children.take_ended();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_FALSE(succeeded(ends[0].wait_status));
  ASSERT_TRUE(ends[0].note);
  EXPECT_EQ(ends[0].note->kind, "UsageError");
}

}  // namespace
}  // namespace lockstep::launch
