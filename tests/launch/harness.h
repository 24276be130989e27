// Starts `lockstep` as a user would, with a deadline for every wait, and checks that no process is left
// behind.
#pragma once

#include <chrono>
#include <filesystem>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <sys/types.h>
#include <thread>
#include <vector>

#include "base/fd.h"

namespace lockstep::launch::testing {

using Words = std::vector<std::string>;

struct StartOptions {
  std::map<std::string, std::string> environment;  // added to a minimal one
  enum class Out { Captured, Terminal, Closed, NobodyReads } out = Out::Captured;
};

// A process and its output, which threads read continuously unless the options say otherwise.
class Process {
 public:
  Process(const Words& words, const StartOptions& options, const std::string& mark);
  ~Process();
  Process(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int signal) const;
  // Returns the status that a shell would report. Fails the test and ends the process if it takes longer.
  int wait(std::chrono::milliseconds at_most = std::chrono::seconds(20));
  bool wait_for_text(const std::string& text, std::chrono::milliseconds at_most = std::chrono::seconds(20));
  std::string out() const;  // with Terminal: both streams
  std::string err() const;
  bool running();

 private:
  void collect(int fd, std::string& target);
  void join_readers();

  pid_t pid_ = 0;
  std::optional<int> status_;
  std::vector<std::thread> readers_;
  std::vector<base::Fd> files_;
  mutable std::mutex mutex_;
  std::string out_;
  std::string err_;
};

// Each test has its own folder, and marks the environment of all processes that it starts; at its end none of
// them may be left.
class LaunchTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::unique_ptr<Process> start(const Words& words, const StartOptions& options = {});
  // `lockstep run …`; the word "PROBE" stands for the path of the probe.
  std::unique_ptr<Process> run(Words words, const StartOptions& options = {});

  // The agent that a guard has started.
  pid_t agent_of(const Process& guard);
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  // All processes that have this test's mark.
  std::vector<pid_t> marked() const;

  std::filesystem::path folder_;
  std::string mark_;
};

bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds at_most = std::chrono::seconds(20));
std::string read_whole(const std::string& path);
std::vector<std::string> lines_of(const std::string& text);
size_t count(const std::string& text, const std::string& what);
bool alive(pid_t pid);
// The number after `word` in `text`, as in "pid 123".
pid_t number_after(const std::string& text, const std::string& word);

}  // namespace lockstep::launch::testing
