#include "shm/peer_end.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <sstream>
#include <string_view>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "base/process_end.h"

namespace lockstep::shm {

namespace {

bool readable(const base::Fd& fd, base::Deadline until) {
  pollfd polled{fd.get(), POLLIN, 0};
  while (::poll(&polled, 1, until.poll_timeout()) < 0) {
    if (errno != EINTR) return false;
  }
  return polled.revents != 0;
}

// The status of a process that has ended but was not reaped yet.
std::optional<int> wait_status_of_zombie(const base::Fd& process, int pid) {
  base::Fd file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  std::array<char, 1024> text = {};
  const auto length = ::read(file.get(), text.data(), text.size());
  if (length <= 0) return std::nullopt;
  // The second field is the program's name in parentheses, which may contain any character.
  const std::string_view line(text.data(), static_cast<size_t>(length));
  const auto name_end = line.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  std::istringstream rest{std::string(line.substr(name_end + 1))};
  std::vector<std::string> fields;
  for (std::string field; rest >> field;) fields.push_back(field);
  constexpr size_t kState = 0, kExitCode = 49;  // the third and the 52nd field of the line
  if (fields.size() <= kExitCode || fields[kState] != "Z") return std::nullopt;
  // If the process is still not reaped, the pid cannot have been reused before the read.
  if (::syscall(SYS_pidfd_send_signal, process.get(), 0, nullptr, 0) != 0) return std::nullopt;
  return std::atoi(fields[kExitCode].c_str());
}

// From Linux 6.15 on, a pidfd reports how its process ended, also after it was reaped.
std::optional<int> wait_status_from_pidfd(const base::Fd& process) {
  struct Info {
    uint64_t mask;
    uint64_t cgroup;
    std::array<uint32_t, 11> ids;
    int32_t exit_code;
  };
  constexpr uint64_t kExitIsKnown = 1 << 3;
  Info info = {.mask = kExitIsKnown};
  if (::ioctl(process.get(), _IOWR(0xFF, 11, Info), &info) != 0) return std::nullopt;
  if ((info.mask & kExitIsKnown) == 0) return std::nullopt;
  return info.exit_code;
}

}  // namespace

std::string describe_peer_end(const base::Fd& process, int pid, base::Deadline until) {
  // If only the first thread has ended, /proc shows a zombie, too, but the pidfd is not readable.
  if (!process || !readable(process, until)) return "";
  auto status = wait_status_of_zombie(process, pid);
  if (!status) status = wait_status_from_pidfd(process);
  return status ? base::describe_end(*status) : "";
}

}  // namespace lockstep::shm
