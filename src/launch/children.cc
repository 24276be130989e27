#include "launch/children.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "base/error_text.h"

namespace lockstep::launch {

namespace {

int wait_status_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return as_wait_status(info.si_status);
  constexpr int kCoreDumped = 0x80;
  return info.si_status | (info.si_code == CLD_DUMPED ? kCoreDumped : 0);
}

base::Note waited_for_elsewhere() {
  return {"UsageError", base::compose({.what = "its exit status is unknown",
                                       .evidence = "another part of this program waited for it",
                                       .hint = "a SIGCHLD handler must not wait for all children"})};
}

std::optional<base::Note> read_note(const base::Fd& pipe) {
  char bytes[8192];
  const ssize_t size = ::read(pipe.get(), bytes, sizeof bytes);
  if (size <= 0) return std::nullopt;
  return base::decode_note({bytes, static_cast<size_t>(size)});
}

}  // namespace

std::vector<int> Children::running_ranks() const {
  std::vector<int> ranks;
  for (const auto& child : running_) ranks.push_back(child.rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void Children::signal_groups(int signal) const {
  for (const auto& child : running_) ::kill(-child.pid, signal);
}

void Children::signal_leaders(int signal) const {
  for (const auto& child : running_) ::kill(child.pid, signal);
}

std::vector<RankEnd> Children::take_ended() {
  std::vector<RankEnd> ends;
  for (auto child = running_.begin(); child != running_.end();) {
    siginfo_t info{};
    const int result = ::waitid(P_PID, static_cast<id_t>(child->pid), &info, WEXITED | WNOHANG | WNOWAIT);
    if (result == 0 ? info.si_pid == 0 : errno != ECHILD) {
      ++child;
      continue;
    }
    RankEnd end{.rank = child->rank,
                .local_rank = child->local_rank,
                .pid = child->pid,
                .note = read_note(child->note)};
    if (result == 0) {
      end.wait_status = wait_status_of(info);
      zombies_.push_back({child->pid, base::Deadline::in(readable_)});
    } else {
      end.wait_status = as_wait_status(1);
      if (!end.note) end.note = waited_for_elsewhere();
    }
    ends.push_back(std::move(end));
    child = running_.erase(child);
  }
  return ends;
}

std::optional<base::Deadline> Children::reap() {
  while (!zombies_.empty() && (running_.empty() || zombies_.front().until.expired())) {
    ::waitpid(zombies_.front().pid, nullptr, WNOHANG);
    zombies_.erase(zombies_.begin());
  }
  if (zombies_.empty()) return std::nullopt;
  return zombies_.front().until;
}

void Children::clear() {
  running_.clear();
  zombies_.clear();
}

}  // namespace lockstep::launch
