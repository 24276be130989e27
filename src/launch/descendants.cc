#include "launch/descendants.h"

#include <cctype>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>

#include "base/fd.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;

constexpr auto kGiveUpAfter = 10s;

// The parent of `pid`; 0 if the process has ended or is a zombie.
pid_t living_parent_of(const char* pid) {
  const std::string path = std::string("/proc/") + pid + "/stat";
  const base::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t size = file ? ::read(file.get(), text, sizeof text - 1) : -1;
  if (size <= 0) return 0;
  text[size] = '\0';
  // "pid (name) state ppid …"; the name may contain spaces and parentheses.
  const char* after_name = std::strrchr(text, ')');
  if (after_name == nullptr || std::strlen(after_name) < 4) return 0;
  const char state = after_name[2];
  return state == 'Z' || state == 'X' ? 0 : static_cast<pid_t>(std::atol(after_name + 4));
}

// Returns false if this process has no children.
bool reap_children() {
  for (;;) {
    const pid_t pid = ::waitpid(-1, nullptr, WNOHANG);
    if (pid < 0) return false;
    if (pid == 0) return true;
  }
}

}  // namespace

void become_subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

std::vector<pid_t> descendants() {
  std::unordered_multimap<pid_t, pid_t> children_of;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    if (!std::isdigit(static_cast<unsigned char>(entry->d_name[0]))) continue;
    if (const pid_t parent = living_parent_of(entry->d_name)) {
      children_of.emplace(parent, static_cast<pid_t>(std::atol(entry->d_name)));
    }
  }
  std::vector<pid_t> found{::getpid()};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [first, last] = children_of.equal_range(found[i]);
    for (auto child = first; child != last; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

Sweep::Sweep(std::chrono::milliseconds grace)
    : grace_(base::Deadline::in(grace)), give_up_(base::Deadline::in(grace + kGiveUpAfter)) {}

bool Sweep::step() {
  // A subreaper without children has no descendants.
  if (!reap_children() || give_up_.expired()) return false;
  const bool kill = grace_.expired();
  for (const pid_t pid : descendants()) {
    const bool first = signalled_.insert(pid).second;
    if (kill) {
      ::kill(pid, SIGKILL);
    } else if (first) {
      ::kill(pid, SIGTERM);
    }
  }
  return true;
}

void Sweep::hurry() {
  if (grace_.expired()) return;
  grace_ = base::Deadline::in(0ms);
  give_up_ = base::Deadline::in(kGiveUpAfter);
}

size_t end_descendants(std::chrono::milliseconds grace) {
  Sweep sweep(grace);
  while (sweep.step()) std::this_thread::sleep_for(2ms);
  return sweep.signalled();
}

}  // namespace lockstep::launch
