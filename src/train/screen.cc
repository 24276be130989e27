#include "train/screen.h"

#include <cerrno>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/env.h"

namespace lockstep::train {

namespace {

// For terminals that do not report their size.
constexpr int kUsualWidth = 80;

}  // namespace

Screen::Screen(int fd)
    : fd_(fd),
      redraws_(::isatty(fd) == 1 && base::env_string("TERM") != "dumb"),
      colours_(redraws_ && !base::env_string("NO_COLOR")),
      // poll() ignores negative descriptors, so it would never report this one as ready.
      broken_(fd < 0) {}

int Screen::width() const {
  winsize size{};
  return ::ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualWidth;
}

bool Screen::ready(const base::Deadline& deadline) {
  while (true) {
    pollfd waiting{.fd = fd_, .events = POLLOUT, .revents = 0};
    const int found = ::poll(&waiting, 1, deadline.poll_timeout());
    // Detecting a closed pipe before writing avoids SIGPIPE.
    if (found > 0) broken_ = (waiting.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
    if (found > 0) return !broken_;
    if (found == 0 || errno != EINTR) return false;
  }
}

bool Screen::write(std::string_view text, std::chrono::milliseconds patience) {
  if (broken_) return false;
  const auto deadline = base::Deadline::in(patience);
  // A writable pipe has room for a page, which is more than a line, so a line is never half written.
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
