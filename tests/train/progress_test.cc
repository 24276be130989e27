// The progress bar on a pseudo-terminal, in files and in pipes, with a clock that the test controls.
#include <cmath>
#include <cstdlib>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <lockstep/lockstep.h>
#include <lockstep/progress.h>

#include "base/fd.h"
#include "comm/group.h"
#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// Sets an environment variable during its lifetime.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// A clock that only the test advances.
struct TestClock {
  std::chrono::steady_clock::time_point now{};
  std::function<std::chrono::steady_clock::time_point()> reader() {
    return [this] { return now; };
  }
};

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  while (true) {
    const auto got = ::read(fd, buffer, sizeof buffer);
    if (got <= 0) return text;
    text.append(buffer, got);
  }
}

// A pseudo-terminal that passes on its input unchanged.
struct Terminal {
  explicit Terminal(int columns = 80) {
    int ours = -1, theirs = -1;
    termios raw{};
    ::cfmakeraw(&raw);
    winsize size{
        .ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
    if (::openpty(&ours, &theirs, nullptr, &raw, &size) != 0) throw std::runtime_error("openpty");
    master.reset(ours);
    slave.reset(theirs);
    ::fcntl(ours, F_SETFL, O_NONBLOCK);
  }
  std::string written() const { return read_all(master.get()); }

  base::Fd master, slave;
};

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_NONBLOCK) != 0) throw std::runtime_error("pipe");
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  std::string written() const { return read_all(reader.get()); }

  base::Fd reader, writer;
};

// A world of one, created without changing this process, and the environment variables that affect the
// output.
class OnScreen : public ::testing::Test {
 protected:
  static std::shared_ptr<ProcessGroup> group() {
    return std::make_shared<ProcessGroup>(std::make_shared<ProcessGroup::Impl>());
  }

  const Variable term_{"TERM", "xterm"}, no_color_{"NO_COLOR", "1"};
  TestClock clock_;
};

// The visible text, without control sequences.
std::vector<std::string> drawings(const std::string& text) {
  std::vector<std::string> result;
  for (size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find("\r\033[K", begin + 1), text.size());
    result.push_back(text.substr(begin, end - begin));
    if (result.back().starts_with("\r\033[K")) result.back().erase(0, 4);
    begin = end;
  }
  return result;
}

TEST_F(OnScreen, DrawsAtMostTenTimesASecond) {
  const Terminal terminal;
  Progress bar(group(), {.steps = 1000, .out = terminal.slave.get(), .clock = clock_.reader()});
  for (int i = 0; i < 1000; ++i) {
    clock_.now += 1ms;
    bar.step(0.5, 8);
  }
  const auto lines = drawings(terminal.written());
  EXPECT_EQ(lines.size(), 10U);
  EXPECT_THAT(lines.front(), HasSubstr("1/1000  loss 0.5"));
  EXPECT_THAT(lines.back(), AllOf(HasSubstr("901/1000"), HasSubstr("8.00k samples/s")));
  bar.finish();
  EXPECT_THAT(drawings(terminal.written()),
              ElementsAre(AllOf(StartsWith("100%  [====="), HasSubstr("1000/1000"), EndsWith("in 0:01\n"))));
}

TEST_F(OnScreen, StaysInTheWidthOfTheTerminal) {
  for (const int columns : {1, 2, 20, 50}) {
    const Terminal terminal(columns);
    Progress bar(group(),
                 {.steps = kHuge, .label = "a label", .out = terminal.slave.get(), .clock = clock_.reader()});
    for (int i = 0; i < 3; ++i) {
      clock_.now += 1s;
      bar.step(0.25, kHuge);
    }
    for (const auto& line : drawings(terminal.written()))
      EXPECT_LT(line.size(), static_cast<size_t>(columns)) << line;
    // Enlarge the window.
    const winsize size{.ws_row = 24, .ws_col = 120, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(terminal.slave.get(), TIOCSWINSZ, &size), 0);
    clock_.now += 1s;
    bar.step(0.25, kHuge);
    EXPECT_THAT(terminal.written(), AllOf(HasSubstr("a label"), HasSubstr("[>"), HasSubstr("loss 0.25")));
  }
}

TEST_F(OnScreen, TakesEightyColumnsWhereTheTerminalDoesNotKnow) {
  const Terminal terminal(0);
  Progress bar(group(), {.steps = 10, .out = terminal.slave.get(), .clock = clock_.reader()});
  bar.step(1.0);
  EXPECT_THAT(terminal.written(), HasSubstr("[===>"));
}

TEST_F(OnScreen, HasColourUnlessItIsUnwanted) {
  const auto draw = [&] {
    const Terminal terminal;
    Progress(group(), {.steps = 10, .out = terminal.slave.get(), .clock = clock_.reader()}).step();
    return terminal.written();
  };
  EXPECT_THAT(draw(), Not(HasSubstr("\033[32m")));
  {
    const Variable no_color("NO_COLOR", nullptr);
    EXPECT_THAT(draw(), AllOf(HasSubstr("\033[32m="), HasSubstr("\033[0m-")));
    const Variable term("TERM", "dumb");
    EXPECT_THAT(draw(), AllOf(Not(HasSubstr("\033")), Not(HasSubstr("\r")), EndsWith("\n")));
  }
}

TEST_F(OnScreen, LeavesTheTerminalInOrderWhenAnExceptionFlies) {
  const Terminal terminal;
  try {
    Progress bar(group(), {.steps = 10, .out = terminal.slave.get(), .clock = clock_.reader()});
    bar.step(1.0);
    bar.step(2.0);
    throw std::runtime_error("out of memory");
  } catch (const std::runtime_error&) {
  }
  EXPECT_THAT(terminal.written(), AllOf(HasSubstr("2/10  loss 2"), EndsWith("\n")));
}

TEST_F(OnScreen, LeavesTheTerminalInOrderWhenTheLossCannotBeRead) {
  const Terminal terminal;
  {
    Progress bar(group(), {.steps = 10, .out = terminal.slave.get(), .clock = clock_.reader()});
    bar.step(1.0);
    // A tensor without values, like one on a device that has failed.
    bar.step(torch::empty({}, at::device(at::kMeta)));
  }
  EXPECT_THAT(terminal.written(), AllOf(HasSubstr("1/10  loss 1"), EndsWith("\n")));
}

TEST_F(OnScreen, LinesOfOthersGoAboveTheBar) {
  const Terminal terminal;
  Progress bar(group(), {.steps = 10, .out = terminal.slave.get(), .clock = clock_.reader()});
  bar.print("before");
  bar.step(1.0);
  EXPECT_THAT(drawings(terminal.written()), ElementsAre("before\n", HasSubstr("1/10")));
  bar.print("a line");
  EXPECT_THAT(drawings(terminal.written()), ElementsAre("a line\n", HasSubstr("1/10")));
  bar.clear();
  bar.clear();
  EXPECT_EQ(terminal.written(), "\r\033[K");
  bar.finish();
  EXPECT_THAT(terminal.written(), AllOf(HasSubstr("1/10"), EndsWith("\n")));
  bar.print("after");
  EXPECT_EQ(terminal.written(), "after\n");
}

TEST_F(OnScreen, ATensorIsReadOnlyWhenItIsDrawnAndItsGraphIsLetGo) {
  const Terminal terminal;
  Progress bar(group(), {.steps = 10, .out = terminal.slave.get(), .clock = clock_.reader()});
  const auto parameter = torch::full({1}, 2.0).requires_grad_();
  const auto loss = (parameter * 3).sum();
  bar.step(loss, 4);
  EXPECT_THAT(terminal.written(), HasSubstr("loss 6"));
  bar.step(loss, 4);  // too early to be drawn
  EXPECT_EQ(loss.use_count(), 1);
  // Reading it would throw.
  bar.step(torch::empty({}, at::device(at::kMeta)));
  clock_.now += 1s;
  bar.step(torch::full({1, 1}, 7, at::kLong));
  EXPECT_THAT(terminal.written(), HasSubstr("4/10  loss 7"));
  clock_.now += 1s;
  bar.step(at::Tensor());
  EXPECT_THAT(terminal.written(), HasSubstr("5/10  loss 7"));
  clock_.now += 1s;
  bar.step(std::nan(""));
  EXPECT_THAT(terminal.written(), HasSubstr("6/10  loss nan"));
}

TEST_F(OnScreen, APipeGetsPlainLinesForEachTenth) {
  const Pipe pipe;
  Progress bar(group(),
               {.steps = 100, .label = "epoch 1", .out = pipe.writer.get(), .clock = clock_.reader()});
  for (int i = 0; i < 100; ++i) {
    clock_.now += 200ms;
    bar.step(0.5);
  }
  bar.finish();
  bar.finish();
  const auto text = pipe.written();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10) << text;
  EXPECT_THAT(text, AllOf(StartsWith("epoch 1   10%   10/100"), Not(HasSubstr("\033")), Not(HasSubstr("\r")),
                          EndsWith("in 0:20\n")));
}

TEST_F(OnScreen, APipeGetsNoFloodFromShortEpochsAndNoSilenceFromLongOnes) {
  const Pipe pipe;
  const auto lines = [&](int64_t steps, int taken, std::chrono::milliseconds each) {
    {
      Progress bar(group(), {.steps = steps, .out = pipe.writer.get(), .clock = clock_.reader()});
      for (int i = 0; i < taken; ++i) {
        clock_.now += each;
        bar.step();
      }
    }
    const auto text = pipe.written();
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines(100, 100, 1ms), 1);          // only the last line
  EXPECT_EQ(lines(1'000'000, 60, 1s), 6 + 1);  // one every ten seconds
  EXPECT_EQ(lines(0, 60, 1s), 6 + 1);
  EXPECT_EQ(lines(kHuge, 3, 11s), 3 + 1);
}

TEST_F(OnScreen, AFileGetsPlainLines) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::tmpfile(), &std::fclose);
  const int fd = ::fileno(file.get());
  {
    Progress bar(*group(),
                 {.label = "no\nnew\033[2Jlines", .unit = "tokens", .out = fd, .clock = clock_.reader()});
    clock_.now += 2s;
    bar.step(0.5, 64);
  }
  ::lseek(fd, 0, SEEK_SET);
  EXPECT_EQ(read_all(fd), "no new [2Jlines  1 step  loss 0.5       32.0 tokens/s    0.5 steps/s  in 0:02\n");
}

TEST_F(OnScreen, AnOutputThatFailsOrWaitsDoesNotDisturbTraining) {
  const auto train = [&](int out) {
    Progress bar(group(), {.steps = 4, .out = out, .clock = clock_.reader()});
    for (int i = 0; i < 4; ++i) {
      clock_.now += 2s;
      bar.step(0.5);
    }
    bar.print("text");
  };
  train(-1);
  train(12345);
  // A closed pipe must not kill the program with SIGPIPE.
  Pipe deserted;
  deserted.reader.reset();
  train(deserted.writer.get());
  Terminal closed;
  closed.master.reset();
  train(closed.slave.get());
}

TEST_F(OnScreen, AFullPipeIsNotWaitedForInTheLoop) {
  Pipe pipe;
  const std::string much(4096, 'x');
  while (::write(pipe.writer.get(), much.data(), much.size()) > 0) {
  }
  // From now on, a write would block forever.
  ::fcntl(pipe.writer.get(), F_SETFL, 0);
  Progress bar(group(), {.steps = 10, .out = pipe.writer.get(), .clock = clock_.reader()});
  for (int i = 0; i < 5; ++i) {
    clock_.now += 2s;
    bar.step(0.5);
  }
  EXPECT_EQ(pipe.written().find('%'), std::string::npos);
  clock_.now += 2s;
  bar.step(0.5);
  EXPECT_THAT(pipe.written(), HasSubstr("6/10"));
}

TEST_F(OnScreen, MistakesAreRefused) {
  EXPECT_THROW(Progress(std::shared_ptr<ProcessGroup>()), UsageError);
  EXPECT_THAT(message_of<UsageError>([] { Progress(group(), {.steps = -1}); }), HasSubstr("-1 steps"));
  const Pipe pipe;
  Progress bar(group(), {.out = pipe.writer.get()});
  EXPECT_THAT(message_of<UsageError>([&] { bar.step(1.0, -5); }), HasSubstr("-5 samples"));
  EXPECT_THAT(message_of<UsageError>([&] { bar.step(torch::ones({2})); }), HasSubstr("2 Float elements"));
  EXPECT_THROW(bar.step(torch::zeros({}, at::kComplexFloat)), UsageError);
  bar.finish();
  EXPECT_THAT(message_of<UsageError>([&] { bar.step(); }), HasSubstr("finished"));
  EXPECT_THAT(pipe.written(), StartsWith("0 steps  in 0:00"));
}

TEST(ProgressOfRanks, IsShownByRankZeroOnlyAndForAllRanks) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    const Pipe pipe;
    TestClock clock;
    {
      Progress bar(default_group(), {.steps = 2, .out = pipe.writer.get(), .clock = clock.reader()});
      for (int i = 0; i < 2; ++i) {
        clock.now += 1s;
        bar.step(torch::full({}, 0.5), 10);
      }
      bar.print("a line");
      bar.clear();
      EXPECT_THROW(bar.step(torch::ones({2})), UsageError);
    }
    const auto text = pipe.written();
    if (group.rank() == 0) {
      EXPECT_THAT(text, AllOf(HasSubstr("30.0 samples/s"), HasSubstr("a line\n"), HasSubstr("2/2")));
    } else {
      EXPECT_EQ(text, "");
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
