// A worker for the launcher's tests: performs the actions in its arguments one after the other.
//
//   [rN:][tN:]action[=value]     only on rank N, only in attempt N
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <lockstep/error.h>

#include "base/note.h"
#include "base/uncaught.h"

namespace {

int environment_number(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : 0;
}

// Writes the text with one call if possible, as a real program writes a line.
void print(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) std::_Exit(99);
    if (written > 0) done += static_cast<size_t>(written);
  }
}

void print_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  std::sort(entries.begin(), entries.end());
  for (const auto& entry : entries) print(STDOUT_FILENO, entry + "\n");
}

int signal_number(const std::string& name) {
  const std::map<std::string, int> known{
      {"TERM", SIGTERM}, {"INT", SIGINT}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"HUP", SIGHUP}};
  return known.at(name);
}

void on_signal_say(int signal) {
  const char* name = ::sigabbrev_np(signal);
  const std::string text = std::string("got ") + name + "\n";
  print(STDOUT_FILENO, text);
}

void on_signal_leave(int signal) {
  on_signal_say(signal);
  std::_Exit(0);
}

void fork_grandchild() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setsid();
    for (;;) ::pause();
  }
  print(STDOUT_FILENO, "grandchild " + std::to_string(pid) + "\n");
}

void act(const std::string& action, const std::string& value) {
  const int rank = environment_number("RANK");
  const auto number = [&] { return std::atoi(value.c_str()); };
  if (action == "env") return print_environment();
  if (action == "say") return print(STDOUT_FILENO, value + "\n");
  if (action == "err") return print(STDERR_FILENO, value + "\n");
  if (action == "raw") return print(STDOUT_FILENO, value);
  if (action == "pid") return print(STDOUT_FILENO, "pid " + std::to_string(::getpid()) + "\n");
  if (action == "lines") {
    for (int i = 0; i < number(); ++i) {
      print(STDOUT_FILENO, "line " + std::to_string(i) + " of rank " + std::to_string(rank) + " " +
                               std::string(static_cast<size_t>(i % 90), 'x') + " end\n");
    }
    return;
  }
  if (action == "longline")
    return print(STDOUT_FILENO, std::string(static_cast<size_t>(number()), 'y') + "\n");
  if (action == "bytes") {
    std::string all;
    for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
    return print(STDOUT_FILENO, all + "\n");
  }
  if (action == "flood") {
    for (;;) print(STDOUT_FILENO, std::string(1000, 'z') + "\n");
  }
  if (action == "exit") std::_Exit(number());
  if (action == "segv") {
    std::signal(SIGSEGV, SIG_DFL);
    ::raise(SIGSEGV);
  }
  if (action == "kill") ::raise(SIGKILL);
  if (action == "sleep") return std::this_thread::sleep_for(std::chrono::milliseconds(number()));
  if (action == "hang") {
    for (;;) ::pause();
  }
  if (action == "ignore") {
    std::signal(signal_number(value), SIG_IGN);
    return;
  }
  if (action == "tell") {
    std::signal(signal_number(value), on_signal_say);
    return;
  }
  if (action == "leave") {
    std::signal(signal_number(value), on_signal_leave);
    return;
  }
  if (action == "note") {
    const auto comma = value.find(',');
    lockstep::base::write_note({value.substr(0, comma), value.substr(comma + 1)});
    return;
  }
  if (action == "blame") {  // kind,rank,message
    const auto first = value.find(',');
    const auto second = value.find(',', first + 1);
    lockstep::base::write_note(
        {value.substr(0, first), value.substr(second + 1), {std::atoi(value.c_str() + first + 1)}});
    return;
  }
  if (action == "throw") {
    lockstep::base::report_uncaught_errors();
    throw lockstep::UsageError(value);
  }
  if (action == "throwother") {
    lockstep::base::report_uncaught_errors();
    throw std::runtime_error(value);
  }
  if (action == "stop") {
    ::raise(SIGSTOP);
    return;
  }
  if (action == "grandchild") return fork_grandchild();
  if (action == "touch") {
    ::close(::open(value.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
    return;
  }
  if (action == "await") {
    while (::access(value.c_str(), F_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return;
  }
  if (action == "openfiles") {
    print(STDOUT_FILENO, "open files " + std::to_string(::sysconf(_SC_OPEN_MAX)) + "\n");
    return;
  }
  print(STDERR_FILENO, "launch_probe: unknown action " + action + "\n");
  std::_Exit(98);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "args") {
      for (int j = i + 1; j < argc; ++j) print(STDOUT_FILENO, std::string("<") + argv[j] + ">\n");
      return 0;
    }
    bool mine = true;
    while (word.size() > 2 && (word[0] == 'r' || word[0] == 't') &&
           std::isdigit(static_cast<unsigned char>(word[1]))) {
      const int wanted = std::atoi(word.c_str() + 1);
      mine = mine && wanted == environment_number(word[0] == 'r' ? "RANK" : "TORCHELASTIC_RESTART_COUNT");
      word.erase(0, word.find(':') + 1);
    }
    if (!mine) continue;
    const auto equals = std::min(word.find('='), word.size());
    act(word.substr(0, equals), equals < word.size() ? word.substr(equals + 1) : "");
  }
  return 0;
}
