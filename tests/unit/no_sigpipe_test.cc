#include "gloo/no_sigpipe.h"

#include <cerrno>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/fd.h"

namespace lockstep::gloo {
namespace {

TEST(NoSigpipe, AWriteToAClosedPipeFailsAndLeavesNoSignalPending) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const base::Fd writing(ends[1]);
  ::close(ends[0]);
  sigset_t pending, blocked;
  {
    const NoSigpipe quiet;
    EXPECT_EQ(::write(writing.get(), "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
  }
  ::sigpending(&pending);
  EXPECT_EQ(::sigismember(&pending, SIGPIPE), 0);
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_EQ(::sigismember(&blocked, SIGPIPE), 0);
}

}  // namespace
}  // namespace lockstep::gloo
