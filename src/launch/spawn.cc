// spawn(): runs the ranks of a job as forked children of the calling thread.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <iostream>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <typeinfo>
#include <unistd.h>
#include <vector>

#include <lockstep/error.h>
#include <lockstep/spawn.h>

#include "base/deadline.h"
#include "base/error_text.h"
#include "base/fd.h"
#include "base/host.h"
#include "base/note.h"
#include "base/port.h"
#include "base/rank_list.h"
#include "base/token.h"
#include "base/uncaught.h"
#include "launch/children.h"
#include "launch/control.h"
#include "launch/environment.h"
#include "launch/limits.h"
#include "launch/verdict.h"

namespace lockstep {

namespace {

using namespace std::chrono_literals;
using base::compose;
using base::Deadline;
using base::errno_text;
using base::Fd;
using launch::RankEnd;

// Between SIGTERM and SIGKILL for the ranks that are still running.
constexpr auto kGrace = 5s;
// How long to wait for the cause if the first failure is a consequence.
constexpr auto kCollect = 300ms;
// How often to check a child for which there is no pidfd.
constexpr auto kCheckInterval = 10ms;

std::string type_name(const std::type_info& type) {
  int failed = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &failed), std::free);
  return failed == 0 ? name.get() : type.name();
}

// Returns true if the body returned. Otherwise its error has been sent to the parent as a note.
bool run_body(int rank, const std::function<void(int)>& body) {
  base::Note note;
  try {
    body(rank);
    return true;
  } catch (const Error& error) {
    note = {std::string(error.kind()), error.what()};
  } catch (const std::exception& error) {
    note = {type_name(typeid(error)), error.what()};
  } catch (...) {
    const auto* type = abi::__cxa_current_exception_type();
    note = {type != nullptr ? type_name(*type) : "unknown", base::kNoMessage};
  }
  // The parent rethrows the error of the rank that is the cause. Without a note, print the error here.
  if (!base::write_note(note)) fmt::print(stderr, "[rank {}] {}: {}\n", rank, note.kind, note.message);
  return false;
}

// noexcept: an exception must not propagate into this process's copy of the parent's stack.
[[noreturn]] void become_rank(const launch::Place& place, const base::Token& token, int note_fd, pid_t parent,
                              const std::function<void(int)>& body) noexcept {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent died before prctl()
  launch::raise_open_files();
  for (const auto& [name, value] : launch::variables_of(place)) ::setenv(name.c_str(), value.c_str(), 1);
  ::setenv("LOCKSTEP_NOTE_FD", std::to_string(note_fd).c_str(), 1);
  ::setenv("LOCKSTEP_TOKEN", token.text().c_str(), 1);
  ::unsetenv("LOCKSTEP_TOKEN_FILE");
  bool good = false;
  // On a new thread: the OpenMP runtime has a thread pool for each thread that starts parallel work. The
  // threads of the forking thread's pool do not exist in the child, and this thread would wait for them
  // forever. A new thread gets a new pool.
  std::thread([&] { good = run_body(place.rank, body); }).join();
  // _exit() skips the destructors of static objects, which belong to the parent and may communicate with
  // peers.
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  ::_exit(good ? 0 : 1);
}

class SpawnedRanks {
 public:
  SpawnedRanks(int nprocs, const std::function<void(int)>& body) : nprocs_(nprocs), body_(body) {}
  // However spawn() ends, no child survives it.
  ~SpawnedRanks() {
    children_.signal_groups(SIGKILL);
    for (const auto& child : children_.running()) ::waitpid(child.pid, nullptr, 0);
    children_.take_ended();
    children_.reap();
  }

  void start() {
    for (int rank = 0; rank < nprocs_; ++rank) {
      start_one({.rank = rank,
                 .world_size = nprocs_,
                 .local_rank = rank,
                 .local_world_size = nprocs_,
                 .master_port = reservation_.port()});
    }
  }

  // Blocks until all ranks have ended. Returns the cause unless all succeeded.
  std::optional<RankEnd> wait() {
    std::vector<RankEnd> failures;  // in the order of detection
    std::optional<RankEnd> cause;
    std::optional<Deadline> decide_at;
    std::optional<Deadline> kill_at;
    std::optional<Deadline> reap_at;
    while (wait_for_one(std::min({remaining(decide_at), remaining(kill_at), remaining(reap_at)}))) {
      for (auto& end : children_.take_ended()) {
        if (launch::succeeded(end.wait_status)) continue;
        if (kill_at) continue;  // a consequence of our SIGTERM
        failures.push_back(std::move(end));
      }
      reap_at = children_.reap();
      if (!failures.empty() && !kill_at) {
        if (!decide_at) decide_at = Deadline::in(kCollect);
        if (!launch::is_consequence(launch::choose_cause(failures)) || decide_at->expired()) {
          decide_at.reset();
          cause = verdict_on(failures);
          children_.signal_groups(SIGTERM);
          kill_at = Deadline::in(kGrace);
        }
      }
      if (kill_at && kill_at->expired()) {
        children_.signal_groups(SIGKILL);
        kill_at = Deadline::in(1h);
      }
    }
    if (!cause && !failures.empty()) cause = verdict_on(failures);
    return cause;
  }

 private:
  RankEnd verdict_on(const std::vector<RankEnd>& failures) const {
    RankEnd cause = launch::choose_cause(failures);
    const auto running = children_.running_ranks();
    std::vector<launch::Culprit> silent;
    for (const int rank : launch::blamed_ranks(failures)) {
      if (rank >= nprocs_) continue;
      const bool ended = !std::binary_search(running.begin(), running.end(), rank);
      (ended ? cause.culprits : silent)
          .push_back({.rank = rank, .ended = ended, .pid = pids_[static_cast<size_t>(rank)]});
    }
    if (cause.culprits.empty()) cause.culprits = std::move(silent);
    return cause;
  }

  static std::chrono::milliseconds remaining(const std::optional<Deadline>& deadline) {
    return deadline ? deadline->remaining() : std::chrono::milliseconds(1h);
  }

  void start_one(const launch::Place& place) {
    int ends[2];
    // Non-blocking, so that a rank that writes many notes does not block on a full pipe.
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) refuse(errno);
    Fd read_end(ends[0]);
    Fd write_end(ends[1]);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) refuse(errno);
    if (pid == 0) {
      // Close the descriptors that the fork copied from the parent: no destructor of this frame runs here.
      children_.clear();
      read_end.reset();
      become_rank(place, token_, write_end.get(), parent, body_);
    }
    ::setpgid(pid, pid);
    // By number: glibc's header for pidfd_open cannot be used from C++ before 2.37.
    children_.add({.rank = place.rank,
                   .local_rank = place.rank,
                   .pid = pid,
                   .note = std::move(read_end),
                   .pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))});
    pids_.push_back(pid);
  }

  [[noreturn]] void refuse(int error_number) const {
    throw SystemError(
        compose({.what = fmt::format("cannot start rank {} of {}", pids_.size(), nprocs_),
                 .evidence = errno_text(error_number),
                 .hint = "compare ulimit -u and ulimit -n with the processes and files in use"}));
  }

  // Blocks until a child may have ended or the time has passed. Returns false if no child is left.
  bool wait_for_one(std::chrono::milliseconds at_most) {
    if (children_.empty()) return false;
    std::vector<pollfd> waiting;
    for (const auto& child : children_.running()) {
      if (child.pidfd) {
        waiting.push_back({child.pidfd.get(), POLLIN, 0});
      } else {
        at_most = std::min<std::chrono::milliseconds>(at_most, kCheckInterval);
      }
    }
    ::poll(waiting.data(), waiting.size(), static_cast<int>(at_most.count()));
    return true;
  }

  int nprocs_;
  const std::function<void(int)>& body_;
  base::PortReservation reservation_{base::Reach::ThisMachine};
  base::Token token_ = base::Token::random();
  launch::Children children_;
  std::vector<pid_t> pids_;  // by rank, also of ranks that have ended
};

void check(int nprocs, const std::function<void(int)>& body) {
  if (nprocs < 1 || nprocs > launch::kMostWorkersPerNode) {
    throw UsageError(
        compose({.what = fmt::format("spawn cannot start {} processes", nprocs),
                 .evidence = fmt::format("the number must be from 1 to {}", launch::kMostWorkersPerNode)}));
  }
  if (!body)
    throw UsageError(compose({.what = "spawn got no function to run", .evidence = "the body is empty"}));
  struct sigaction action {};
  ::sigaction(SIGCHLD, nullptr, &action);
  if (action.sa_handler == SIG_IGN || (action.sa_flags & SA_NOCLDWAIT) != 0) {
    throw UsageError(compose({.what = "spawn cannot determine how its processes end",
                              .evidence = "this program ignores SIGCHLD",
                              .hint = "set SIGCHLD to SIG_DFL before the call"}));
  }
}

[[noreturn]] void raise(const RankEnd& cause, int nprocs) {
  std::string who = fmt::format("rank {} of {} failed", cause.rank, nprocs);
  if (!cause.culprits.empty()) {
    std::vector<int> ranks;
    for (const auto& culprit : cause.culprits) ranks.push_back(culprit.rank);
    who = fmt::format("rank {} of {} {}; rank {} reported", base::describe_ranks(ranks), nprocs,
                      launch::describe_culprits(cause.culprits), cause.rank);
  }
  // If a rank wrote a note and was killed afterwards (abort after a message), the note is more informative
  // than the signal.
  if (!cause.note) {
    throw PeerLostError(compose({.what = who,
                                 .where = fmt::format("host {}, pid {}", base::host_name(), cause.pid),
                                 .evidence = "its process " + launch::end_clause(cause.wait_status),
                                 .hint = launch::hint_for_end(cause.wait_status)}));
  }
  const auto& kind = cause.note->kind;
  const bool own = kind == "Error" || kind == "UsageError" || kind == "MismatchError" ||
                   kind == "PeerLostError" || kind == "TimeoutError" || kind == "SnapshotError" ||
                   kind == "SystemError";
  base::throw_kind(kind, own ? fmt::format("{}: {}", who, cause.note->message)
                             : fmt::format("{}: {}: {}", who, kind, cause.note->message));
}

}  // namespace

void spawn(int nprocs, std::function<void(int rank)> body) {
  base::report_uncaught_errors();
  check(nprocs, body);
  // Otherwise each child would write the buffered output again.
  std::cout.flush();
  std::fflush(nullptr);
  std::optional<RankEnd> cause;
  {
    SpawnedRanks ranks(nprocs, body);
    ranks.start();
    cause = ranks.wait();
  }
  if (cause) raise(*cause, nprocs);
}

}  // namespace lockstep
