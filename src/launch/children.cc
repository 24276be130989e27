#include "launch/children.h"

#include <algorithm>
#include <csignal>
#include <unistd.h>
#include <utility>

namespace lockstep::launch {

namespace {

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

std::optional<RankEnd> Children::remove(pid_t pid, int wait_status) {
  const auto found =
      std::find_if(running_.begin(), running_.end(), [&](const Child& child) { return child.pid == pid; });
  if (found == running_.end()) return std::nullopt;
  const Child child = std::move(*found);
  running_.erase(found);
  return RankEnd{.rank = child.rank,
                 .local_rank = child.local_rank,
                 .pid = pid,
                 .wait_status = wait_status,
                 .note = read_note(child.note)};
}

}  // namespace lockstep::launch
