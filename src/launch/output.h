// What the workers print: to our stdout and stderr line by line with the rank before it, to a log file per
// rank, and the last lines kept for a report.
//
// Reading and writing happen on a thread of its own, since writing to a terminal or a full pipe may block for
// as long as the reader likes, and supervision must go on meanwhile. A worker that prints more than is read
// blocks in its own write, as without a launcher. All functions may be called from any thread; none blocks
// unless it says so.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "launch/lines.h"

namespace lockstep::launch {

// One of our own output files. Used by the output thread only.
class Terminal {
 public:
  Terminal(int fd, std::shared_ptr<Prefixer> prefixer);

  // Blocks. False, once, when it turns out that nobody reads any more.
  bool write(int source, int rank, std::string_view text);

 private:
  int fd_;
  bool colour_;
  bool closed_ = false;
  std::shared_ptr<Prefixer> prefixer_;
};

// A rank's log file: both streams, no prefixes.
class RankLog {
 public:
  // Creates or appends; a file that has text already gets a line that says that another run begins here.
  // Throws SystemError.
  RankLog(const std::string& path, int attempt);
  // False, once, when the text could not be written; nothing more is written then.
  bool write(int source, std::string_view text);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  base::Fd file_;
  Prefixer prefixer_;
};

class Output {
 public:
  Output();
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // From now on, `out` and `err` of this rank. `tee`: 1 shows stdout, 2 stderr, 3 both, 0 none. `log` may be
  // null.
  void attach(int rank, base::Fd out, base::Fd err, int tee, std::shared_ptr<RankLog> log);
  // A line or several of our own, to stderr, after all that the workers have written up to now.
  void say(std::string text);
  // The same, but ahead of what the workers have written and nobody has read yet: what they say of their end,
  // when they are told to stop, comes after the reason.
  void say_at_once(std::string text);
  // In the log file of a rank, if it has one, after all that the rank has written.
  void keep(int rank, std::string text);
  // Of a rank that has ended. Blocks, for `at_most`, until all that it has written has been read.
  std::vector<std::string> last_lines(int rank, std::chrono::milliseconds at_most);

  // Reads what is left, writes all, and ends the thread. done_fd() becomes readable then.
  void finish();
  int done_fd() const { return done_.get(); }
  // Then, either wait for the end of the thread, or give up on it, since it may be blocked: after that the
  // process must be ended with _exit.
  void join() { thread_.join(); }
  void abandon() { thread_.detach(); }

 private:
  struct Stream {
    int source;  // unique: 2 * rank + (0 stdout | 1 stderr)
    int rank;
    base::Fd fd;
    Terminal* terminal;  // null: not shown
    std::shared_ptr<RankLog> log;
    LineAssembler lines;
    base::Deadline::Clock::time_point last_read{};
  };

  void post(std::function<void()> command);
  void run();
  void run_commands();
  int poll_timeout_ms() const;
  // Reads once; false when there is nothing more for now.
  bool read_from(Stream& stream);
  void read_all();
  void flush_idle();
  void deliver(Stream& stream, const std::string& text);
  void say_now(const std::string& text);

  base::Fd wake_;
  base::Fd done_;
  Terminal out_;
  Terminal err_;

  std::mutex mutex_;  // guards commands_
  std::deque<std::function<void()>> commands_;

  // The output thread's own.
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<int, Tail> tails_;
  std::map<int, std::shared_ptr<RankLog>> logs_;
  bool finishing_ = false;

  std::thread thread_;
};

}  // namespace lockstep::launch
