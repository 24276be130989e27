#include "train/screen.h"

#include <cerrno>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/env.h"

namespace lockstep::train {

namespace {

// For terminals that do not know their size.
constexpr int kUsualWidth = 80;

}  // namespace

Screen::Screen(int fd)
    : fd_(fd),
      redraws_(::isatty(fd) == 1 && base::env_string("TERM") != "dumb"),
      colours_(redraws_ && !base::env_string("NO_COLOR")),
      // poll() would wait for it, and never see it ready.
      broken_(fd < 0) {}

int Screen::width() const {
  winsize size{};
  return ::ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualWidth;
}

bool Screen::ready(const base::Deadline& deadline) {
  while (true) {
    pollfd waiting{.fd = fd_, .events = POLLOUT, .revents = 0};
    const int found = ::poll(&waiting, 1, deadline.poll_timeout());
    // Seen before a write, a reader that is gone costs no SIGPIPE.
    if (found > 0) broken_ = (waiting.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
    if (found > 0) return !broken_;
    if (found == 0 || errno != EINTR) return false;
  }
}

bool Screen::write(std::string_view text, std::chrono::milliseconds patience) {
  if (broken_) return false;
  const auto deadline = base::Deadline::in(patience);
  // A pipe that is writable has room for a page, more than a line: a line is never left half written.
  if (!ready(deadline)) return false;
  while (!text.empty()) {
    const auto written = ::write(fd_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      if (!ready(deadline)) return false;
    } else if (errno != EINTR) {
      broken_ = true;
      return false;
    }
  }
  return true;
}

}  // namespace lockstep::train
