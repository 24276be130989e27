#include "launch/output.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <future>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;
using base::compose;
using base::errno_text;
using Clock = base::Deadline::Clock;

// An unfinished line (a prompt, a progress bar) is shown after this time.
constexpr auto kIdle = 200ms;
// The most bytes to read from one stream before the others are read, also before one of our own lines.
constexpr size_t kTurnBytes = 1 << 20;
constexpr int kLauncher = -2;

// Returns 0 or an errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      pollfd waiting{fd, POLLOUT, 0};  // the file may have been made non-blocking by another process
      ::poll(&waiting, 1, -1);
    } else if (written < 0 && errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

bool wants_colour(int fd) {
  return ::isatty(fd) == 1 && !base::env_string("NO_COLOR") && base::env_string("TERM") != "dumb";
}

std::string prefix_of(int rank, bool colour) {
  if (!colour) return fmt::format("[rank {}] ", rank);
  constexpr int kColours[] = {36, 33, 35, 32, 34, 31};
  return fmt::format("\x1b[{}m[rank {}]\x1b[0m ", kColours[static_cast<size_t>(rank) % std::size(kColours)],
                     rank);
}

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

base::Fd make_eventfd() {
  base::Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw SystemError(compose({.what = "cannot create an eventfd", .evidence = errno_text(errno)}));
  return fd;
}

}  // namespace

Terminal::Terminal(int fd, std::shared_ptr<Prefixer> prefixer)
    : fd_(fd), colour_(wants_colour(fd)), prefixer_(std::move(prefixer)) {}

bool Terminal::write(int source, int rank, std::string_view text) {
  if (closed_) return true;
  const std::string prefix = source == kLauncher ? "" : prefix_of(rank, colour_);
  if (write_all(fd_, prefixer_->format(source, prefix, text)) == 0) return true;
  closed_ = true;
  return false;
}

RankLog::RankLog(const std::string& path, int attempt)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (!file_) {
    throw SystemError(compose({.what = fmt::format("cannot write the log file {}", path),
                               .evidence = errno_text(errno),
                               .hint = "choose another --log-dir"}));
  }
  struct stat status {};
  if (::fstat(file_.get(), &status) == 0 && status.st_size > 0) {
    write(kLauncher, fmt::format("=== lockstep run: attempt {}, {:%F %T} ===\n", attempt + 1,
                                 fmt::localtime(std::time(nullptr))));
  }
}

bool RankLog::write(int source, std::string_view text) {
  if (!file_) return true;
  const int error_number = write_all(file_.get(), prefixer_.format(source, "", text));
  if (error_number == 0) return true;
  file_.reset();
  errno = error_number;
  return false;
}

Output::Output()
    : wake_(make_eventfd()),
      done_(make_eventfd()),
      out_(STDOUT_FILENO, std::make_shared<Prefixer>()),
      // Shared below if both are the same terminal, where an unfinished line of stdout also affects stderr.
      err_(STDERR_FILENO, std::make_shared<Prefixer>()) {
  if (same_file(STDOUT_FILENO, STDERR_FILENO)) {
    const auto shared = std::make_shared<Prefixer>();
    out_ = Terminal(STDOUT_FILENO, shared);
    err_ = Terminal(STDERR_FILENO, shared);
  }
  thread_ = std::thread([this] { run(); });
}

Output::~Output() {
  if (!thread_.joinable()) return;
  finish();
  thread_.join();
}

void Output::post(std::function<void()> command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  ::eventfd_write(wake_.get(), 1);
}

void Output::attach(int rank, base::Fd out, base::Fd err, int tee, std::shared_ptr<RankLog> log) {
  // A shared_ptr, because std::function requires copyable captures.
  auto streams = std::make_shared<std::vector<std::unique_ptr<Stream>>>();
  streams->push_back(std::make_unique<Stream>(
      Stream{2 * rank, rank, std::move(out), (tee & 1) != 0 ? &out_ : nullptr, log, {}, {}}));
  streams->push_back(std::make_unique<Stream>(
      Stream{2 * rank + 1, rank, std::move(err), (tee & 2) != 0 ? &err_ : nullptr, log, {}, {}}));
  post([this, rank, streams, log] {
    tails_[rank] = Tail();
    logs_[rank] = log;
    for (auto& stream : *streams) streams_.push_back(std::move(stream));
  });
}

void Output::print(std::string text) {
  post([this] { read_all(); });
  print_ahead(std::move(text));
}

void Output::print_ahead(std::string text) {
  if (!text.ends_with('\n')) text += '\n';
  post([this, text = std::move(text)] { write_own(text); });
}

void Output::append_to_log(int rank, std::string text) {
  if (!text.ends_with('\n')) text += '\n';
  post([this, rank, text = std::move(text)] {
    read_all();
    if (logs_[rank]) logs_[rank]->write(2 * rank + 1, text);
  });
}

std::vector<std::string> Output::last_lines(int rank, std::chrono::milliseconds at_most) {
  auto promise = std::make_shared<std::promise<std::vector<std::string>>>();
  auto lines = promise->get_future();
  post([this, rank, promise] {
    read_all();
    // The rank has ended, so its last line is complete, even if a child of it still has the pipe open.
    for (const auto& stream : streams_) {
      if (stream->rank == rank) deliver(*stream, stream->lines.take_all());
    }
    promise->set_value(tails_[rank].lines());
  });
  // The thread may be blocked by a reader that has stopped reading; a report without the lines is better than
  // none.
  if (lines.wait_for(at_most) != std::future_status::ready) return {};
  return lines.get();
}

void Output::finish() {
  post([this] { finishing_ = true; });
}

void Output::run() {
  while (!finishing_) {
    std::vector<pollfd> waiting{{wake_.get(), POLLIN, 0}};
    for (const auto& stream : streams_) waiting.push_back({stream->fd.get(), POLLIN, 0});
    ::poll(waiting.data(), waiting.size(), poll_timeout_ms());
    // Before reading, because of print_ahead(). May append streams, which were not polled.
    if (waiting[0].revents != 0) run_commands();
    for (size_t i = 0; i + 1 < waiting.size(); ++i) {
      if (waiting[i + 1].revents != 0) read_from(*streams_[i]);
    }
    flush_idle();
    std::erase_if(streams_, [](const auto& stream) { return !stream->fd; });
  }
  read_all();
  for (const auto& stream : streams_) deliver(*stream, stream->lines.take_all());
  ::eventfd_write(done_.get(), 1);
}

void Output::run_commands() {
  eventfd_t ignored = 0;
  ::eventfd_read(wake_.get(), &ignored);
  std::deque<std::function<void()>> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (const auto& command : commands) command();
}

int Output::poll_timeout_ms() const {
  auto timeout = -1ms;
  for (const auto& stream : streams_) {
    if (stream->lines.empty()) continue;
    const auto left =
        std::max(0ms, std::chrono::ceil<std::chrono::milliseconds>(stream->last_read + kIdle - Clock::now()));
    timeout = timeout < 0ms ? left : std::min(timeout, left);
  }
  return static_cast<int>(timeout.count());
}

bool Output::read_from(Stream& stream) {
  if (!stream.fd) return false;
  char bytes[64 * 1024];
  const ssize_t size = ::read(stream.fd.get(), bytes, sizeof bytes);
  if (size > 0) {
    stream.last_read = Clock::now();
    stream.lines.add({bytes, static_cast<size_t>(size)});
    deliver(stream, stream.lines.take_complete());
    return true;
  }
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  deliver(stream, stream.lines.take_all());
  stream.fd.reset();
  return false;
}

void Output::read_all() {
  for (const auto& stream : streams_) {
    for (size_t turns = kTurnBytes / (size_t{64} * 1024); turns > 0 && read_from(*stream); --turns) {
    }
  }
}

void Output::flush_idle() {
  const auto now = Clock::now();
  for (const auto& stream : streams_) {
    if (!stream->lines.empty() && now - stream->last_read >= kIdle)
      deliver(*stream, stream->lines.take_all());
  }
}

void Output::deliver(Stream& stream, const std::string& text) {
  if (text.empty()) return;
  tails_[stream.rank].add(stream.source, text);
  if (stream.log != nullptr && !stream.log->write(stream.source, text)) {
    write_own(fmt::format("lockstep run: warning: cannot write to {} any more: {}; the job continues\n",
                          stream.log->path(), errno_text(errno)));
  }
  if (stream.terminal != nullptr && !stream.terminal->write(stream.source, stream.rank, text)) {
    const bool is_out = stream.terminal == &out_;
    write_own(fmt::format(
        "lockstep run: warning: {} is closed: what the workers write there is dropped; the job continues\n",
        is_out ? "stdout" : "stderr"));
  }
}

void Output::write_own(const std::string& text) { err_.write(kLauncher, -1, text); }

}  // namespace lockstep::launch
