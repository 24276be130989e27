// Runs a test body in one real process for each rank.
//
// A failed assertion or an exception in any rank fails the test in the parent and quotes that rank's output.
// A deadline kills the processes that were started, by pid, and nothing else. At the end none of them, nor
// any child of theirs, may be left.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <lockstep/process_group.h>

namespace lockstep::testing {

using Environment = std::map<std::string, std::string>;

struct RankOutcome {
  int rank = 0;
  int exit_status = -1;  // -1: did not exit by itself
  int signal = 0;        // what killed it
  bool hung = false;     // killed by us: at the deadline, or stopped when all others had ended
  std::string output;    // stdout and stderr

  std::string describe() const;
};

struct Start {
  std::chrono::seconds deadline{60};
  // Added to (or, when empty, taken out of) each rank's environment, after RANK, WORLD_SIZE and so on are
  // set.
  std::function<Environment(int rank)> environment = {};
};

// For Start::environment: ranks with equal letters are on the same machine, as far as lockstep can tell;
// "aab" are three ranks on two machines.
std::function<Environment(int rank)> on_machines(const std::string& letters);
// What ranks need for a backend: for "hybrid", the first half of them is on one machine, the second half on
// another; for "hybrid:abb", they are on these machines.
std::function<Environment(int rank)> environment_for(const std::string& backend, int world);
// "hybrid" of "hybrid:abb".
std::string name_of_backend(const std::string& backend);

// To be called before a fork. Backends of earlier tests end in threads of their own: a process forked
// meanwhile would inherit the locks that such a thread holds, and nobody to give them back.
void let_own_threads_end();

// Starts `world` processes that run body(rank), and waits for them. With LOCKSTEP_TEST_JOINS in the
// environment, mpirun has started this process as one of them, and has given MASTER_PORT to all: it runs
// body(rank) itself (tests/mpi). An exception that leaves the body is printed as
// "<kind>: <what>" and makes the rank exit with status 1, as does a failed assertion.
std::vector<RankOutcome> start_ranks(int world, const std::function<void(int rank)>& body,
                                     const Start& start = {});

// The common case: each rank makes the default group first, and every rank must succeed. The ranks are where
// environment_for() puts them.
void run_ranks(int world, const std::string& backend, const std::function<void(ProcessGroup& group)>& body,
               std::chrono::seconds deadline = std::chrono::seconds(60));

// Fails the test, quoting the rank, unless it exited with 0.
void expect_success(const std::vector<RankOutcome>& outcomes);

// A fault at a named point: kill_at(2, 5).reach(rank, step) ends rank 2 at step 5.
class Fault {
 public:
  static Fault kill_at(int rank, int step) { return {rank, step, 9 /* SIGKILL */}; }
  static Fault stop_at(int rank, int step) { return {rank, step, 19 /* SIGSTOP */}; }
  void reach(int rank, int step) const;
  int rank() const { return rank_; }

 private:
  Fault(int rank, int step, int signal) : rank_(rank), step_(step), signal_(signal) {}
  int rank_, step_, signal_;
};

}  // namespace lockstep::testing
