// Which of several failed ranks is the cause, and how its end is put in words. Pure; shared by the agent and
// by spawn().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/note.h"

namespace lockstep::launch {

// A rank that did not fail itself, but that the failed ones name as the reason.
struct Culprit {
  int rank = 0;
  int local_rank = 0;
  std::string host;
  bool ended = false;  // with status 0; otherwise it runs, and does not answer
  int64_t pid = 0;     // of one that has ended

  bool operator==(const Culprit&) const = default;
};

struct RankEnd {
  int rank = 0;
  int local_rank = 0;
  std::string host;
  int64_t pid = 0;
  int wait_status = 0;  // as waitpid(2) gives it
  std::optional<base::Note> note;
  std::vector<std::string> last_lines;
  std::string not_started;        // why it could not even be started; empty when it ran
  std::vector<Culprit> culprits;  // of a verdict: who is to be named in this one's place

  bool operator==(const RankEnd&) const = default;
};

// A rank that says that a peer is gone or did not answer is most likely the victim of another rank's failure.
bool is_consequence(const RankEnd& failure);

// The first that is not a consequence; the first of all when every one is. `failures` in the order in which
// they were seen, not empty.
const RankEnd& choose_cause(const std::vector<RankEnd>& failures);

// The ranks that the failures, all of them consequences, name as their reason: those that each names that
// names any, without the failed ones themselves. Empty when there is another cause, or when they do not
// agree.
std::vector<int> blamed_ranks(const std::vector<RankEnd>& failures);

bool succeeded(int wait_status);
// What a shell makes of it: the status itself, or 128 + signal.
int exit_status(int wait_status);
// A wait status that says "exited with `status`".
int as_wait_status(int status);
// base::describe_end() as the predicate of a sentence: "exited with status 3", "was killed by signal 9
// (Killed)".
std::string end_clause(int wait_status);
// "ended with status 0 while the others were still working: it made fewer steps", "did not answer"
std::string describe_culprits(const std::vector<Culprit>& culprits);
// What to do next about a process that ended like this; empty when nothing is known that helps.
std::string hint_for_end(int wait_status);

std::string signal_name(int signal);  // "SIGTERM"

}  // namespace lockstep::launch
