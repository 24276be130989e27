// The output of the workers: written to our stdout and stderr line by line with the rank as prefix, to a log
// file per rank, and the last lines kept for a report.
//
// A separate thread reads and writes, because a write to a terminal or a full pipe can block indefinitely,
// and the agent must keep supervising the workers. A worker that prints faster than its output is read blocks
// in its own write, as it would without a launcher. All functions of Output may be called from any thread and
// do not block unless documented otherwise.
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

// Our stdout or stderr. Used by the output thread only.
class Terminal {
 public:
  Terminal(int fd, std::shared_ptr<Prefixer> prefixer);

  // Blocks. Returns false once, for the first write that fails because nobody reads any more.
  bool write(int source, int rank, std::string_view text);

 private:
  int fd_;
  bool colour_;
  bool closed_ = false;
  std::shared_ptr<Prefixer> prefixer_;
};

// The log file of a rank: stdout and stderr, without prefixes.
class RankLog {
 public:
  // Creates the file or appends to it; in a file that is not empty, a line marks the beginning of the new
  // run. Throws SystemError.
  RankLog(const std::string& path, int attempt);
  // Returns false once, with errno set, when a write fails; later text is discarded.
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

  // Starts reading `out` and `err` of this rank. `tee`: 1 shows stdout, 2 stderr, 3 both, 0 neither. `log`
  // may be null.
  void attach(int rank, base::Fd out, base::Fd err, int tee, std::shared_ptr<RankLog> log);
  // Writes one or more lines of our own to stderr, after everything that the workers have written so far.
  void print(std::string text);
  // The same, but before worker output that has not been read yet: the reason for a stop appears before what
  // the workers print when they are stopped.
  void print_ahead(std::string text);
  // Appends text to the log file of a rank, if it has one, after everything that the rank has written.
  void append_to_log(int rank, std::string text);
  // The last lines of a rank that has ended. Blocks until its output has been read, but not longer than
  // `at_most`.
  std::vector<std::string> last_lines(int rank, std::chrono::milliseconds at_most);

  // Reads the remaining output, writes everything, and ends the thread. done_fd() becomes readable
  // afterwards.
  void finish();
  int done_fd() const { return done_.get(); }
  // After finish(): either wait for the thread, or abandon it if it is blocked; the process must then end
  // with _exit().
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
  // Reads once. Returns false if nothing more can be read now.
  bool read_from(Stream& stream);
  void read_all();
  void flush_idle();
  void deliver(Stream& stream, const std::string& text);
  void write_own(const std::string& text);

  base::Fd wake_;
  base::Fd done_;
  Terminal out_;
  Terminal err_;

  std::mutex mutex_;  // guards commands_
  std::deque<std::function<void()>> commands_;

  // Used by the output thread only.
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<int, Tail> tails_;
  std::map<int, std::shared_ptr<RankLog>> logs_;
  bool finishing_ = false;

  std::thread thread_;
};

}  // namespace lockstep::launch
