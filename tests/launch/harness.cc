#include "harness.h"

#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <functional>
#include <poll.h>
#include <pty.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/verdict.h"

namespace lockstep::launch::testing {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::vector<std::string> environment_for(const StartOptions& options, const std::string& mark) {
  std::map<std::string, std::string> variables{
      {"PATH", std::getenv("PATH") != nullptr ? std::getenv("PATH") : "/bin:/usr/bin"},
      {"LOCKSTEP_TEST_MARK", mark}};
  for (const auto& [name, value] : options.environment) variables[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (auto& string : strings) list.push_back(string.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

Process::Process(const Words& words, const StartOptions& options, const std::string& mark) {
  const bool terminal = options.out == StartOptions::Out::Terminal;
  int out[2] = {-1, -1};
  int err[2] = {-1, -1};
  if (terminal) {
    if (::openpty(&out[0], &out[1], nullptr, nullptr, nullptr) != 0) throw std::runtime_error("openpty");
    ::fcntl(out[0], F_SETFD, FD_CLOEXEC);
    ::fcntl(out[1], F_SETFD, FD_CLOEXEC);
  } else if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe2");
  }
  auto arguments = words;
  auto environment = environment_for(options, mark);
  auto argument_pointers = pointers(arguments);
  auto environment_pointers = pointers(environment);
  pid_ = ::fork();
  if (pid_ == 0) {
    // A shell that runs the tests in the background ignores SIGINT.
    for (int signal = 1; signal < 32; ++signal) ::signal(signal, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(terminal ? out[1] : err[1], STDERR_FILENO);
    ::execve(argument_pointers[0], argument_pointers.data(), environment_pointers.data());
    ::_exit(97);
  }
  ::close(out[1]);
  if (err[1] >= 0) ::close(err[1]);
  if (options.out == StartOptions::Out::Closed) {
    ::close(out[0]);
  } else {
    files_.emplace_back(out[0]);
    if (options.out != StartOptions::Out::NobodyReads) {
      readers_.emplace_back([this, fd = out[0]] { collect(fd, out_); });
    }
  }
  if (err[0] >= 0) {
    files_.emplace_back(err[0]);
    readers_.emplace_back([this, fd = err[0]] { collect(fd, err_); });
  }
}

Process::~Process() {
  if (!status_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  join_readers();
}

void Process::collect(int fd, std::string& target) {
  char bytes[65536];
  for (;;) {
    const ssize_t size = ::read(fd, bytes, sizeof bytes);
    if (size <= 0) return;  // a pty returns EIO at its end
    const std::lock_guard lock(mutex_);
    target.append(bytes, static_cast<size_t>(size));
  }
}

void Process::join_readers() {
  for (auto& reader : readers_) reader.join();
  readers_.clear();
}

void Process::signal(int signal) const { ::kill(pid_, signal); }

bool Process::running() {
  if (status_) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
  status_ = exit_status(status);
  return false;
}

int Process::wait(std::chrono::milliseconds at_most) {
  if (!eventually([this] { return !running(); }, at_most)) {
    ADD_FAILURE() << "still running after " << at_most.count() << " ms\nstdout: " << out()
                  << "\nstderr: " << err();
    ::kill(pid_, SIGTERM);
    eventually([this] { return !running(); }, 2s);
    return -1;
  }
  join_readers();
  return *status_;
}

bool Process::wait_for_text(const std::string& text, std::chrono::milliseconds at_most) {
  const auto seen = [&] {
    return out().find(text) != std::string::npos || err().find(text) != std::string::npos;
  };
  if (eventually([&] { return seen() || !running(); }, at_most) && seen()) return true;
  ADD_FAILURE() << "\"" << text << "\" did not appear\nstdout: " << out() << "\nstderr: " << err();
  return false;
}

std::string Process::out() const {
  const std::lock_guard lock(mutex_);
  return out_;
}

std::string Process::err() const {
  const std::lock_guard lock(mutex_);
  return err_;
}

void LaunchTest::SetUp() {
  static std::atomic<int> counter = 0;
  mark_ = fmt::format("{}-{}-{}", ::getpid(), counter++, Clock::now().time_since_epoch().count());
  folder_ = std::filesystem::temp_directory_path() / ("lockstep-launch-" + mark_);
  std::filesystem::create_directories(folder_);
}

void LaunchTest::TearDown() {
  const bool none_left = eventually([this] { return marked().empty(); }, 5s);
  EXPECT_TRUE(none_left) << "processes left behind: " << fmt::format("{}", fmt::join(marked(), ", "));
  for (const pid_t pid : marked()) ::kill(pid, SIGKILL);
  std::filesystem::remove_all(folder_);
}

std::unique_ptr<Process> LaunchTest::start(const Words& words, const StartOptions& options) {
  return std::make_unique<Process>(words, options, mark_);
}

std::unique_ptr<Process> LaunchTest::run(Words words, const StartOptions& options) {
  for (auto& word : words) {
    if (word == "PROBE") word = PROBE_BINARY;
  }
  words.insert(words.begin(), {LOCKSTEP_BINARY, "run"});
  return start(words, options);
}

pid_t LaunchTest::agent_of(const Process& guard) {
  pid_t agent = 0;
  eventually([&] {
    for (const pid_t pid : marked()) {
      std::string ignored;
      pid_t parent = 0;
      const auto stat = read_whole(fmt::format("/proc/{}/stat", pid));
      const auto name_end = stat.rfind(')');
      if (name_end == std::string::npos) continue;
      std::istringstream(stat.substr(name_end + 1)) >> ignored >> parent;
      if (parent == guard.pid()) agent = pid;
    }
    return agent != 0;
  });
  return agent;
}

std::vector<pid_t> LaunchTest::marked() const {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (read_whole(entry.path() / "environ").find("LOCKSTEP_TEST_MARK=" + mark_) == std::string::npos)
      continue;
    const auto pid = static_cast<pid_t>(std::stol(name));
    if (pid != ::getpid()) found.push_back(pid);
  }
  return found;
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds at_most) {
  const auto end = Clock::now() + at_most;
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

std::string read_whole(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++found;
  return found;
}

bool alive(pid_t pid) {
  const auto stat = read_whole(fmt::format("/proc/{}/stat", pid));
  const auto name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.size() > name_end + 2 && stat[name_end + 2] != 'Z';
}

pid_t number_after(const std::string& text, const std::string& word) {
  const auto at = text.find(word + " ");
  return at == std::string::npos ? 0 : static_cast<pid_t>(std::atol(text.c_str() + at + word.size() + 1));
}

}  // namespace lockstep::launch::testing
