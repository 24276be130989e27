// Determines which of several failed ranks is the cause, and describes its end in words. No side effects.
// Shared by the agent and spawn().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/note.h"

namespace lockstep::launch {

// A rank that has not failed itself, but that the failed ranks name as the reason.
struct Culprit {
  int rank = 0;
  int local_rank = 0;
  std::string host;
  bool ended = false;  // whether it has ended with status 0; otherwise it is running and does not answer
  int64_t pid = 0;     // set if it has ended

  bool operator==(const Culprit&) const = default;
};

// How the process of a rank ended. In an order to stop: the end that is reported as the cause.
struct RankEnd {
  int rank = 0;
  int local_rank = 0;
  std::string host;
  int64_t pid = 0;
  int wait_status = 0;  // from waitpid(2)
  std::optional<base::Note> note;
  std::vector<std::string> last_lines;
  std::string not_started;        // why the process could not be started; empty if it ran
  std::vector<Culprit> culprits;  // only in a cause: the ranks to name before this one

  bool operator==(const RankEnd&) const = default;
};

// Whether the rank reported that a peer has ended or did not answer: most likely another rank is the cause.
bool is_consequence(const RankEnd& failure);

// The first failure that is not a consequence, or the first of all if every one is. `failures` is in the
// order of detection, and not empty.
const RankEnd& choose_cause(const std::vector<RankEnd>& failures);

// The ranks that the failures agree on as the reason: those named in the note of every failure that names
// any, without the ranks that have failed themselves. Empty if a failure is not a consequence, or if they do
// not agree.
std::vector<int> blamed_ranks(const std::vector<RankEnd>& failures);

bool succeeded(int wait_status);
// The status that a shell reports: the exit status, or 128 + signal.
int exit_status(int wait_status);
// The wait status of a process that exited with `status`.
int as_wait_status(int status);
// base::describe_end() as the predicate of a sentence: "exited with status 3", "was killed by signal 9
// (Killed)".
std::string end_clause(int wait_status);
// "ended with status 0 while the others were still working: it made fewer steps", "did not answer"
std::string describe_culprits(const std::vector<Culprit>& culprits);
// A hint about a process that ended like this; empty if there is none.
std::string hint_for_end(int wait_status);

std::string signal_name(int signal);  // "SIGTERM"

}  // namespace lockstep::launch
