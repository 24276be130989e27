// A note: a worker's error, written to a pipe for the launcher that started it.
//
// A rank that fails because another rank failed exits as well, sometimes within the same millisecond. The
// notes let the launcher distinguish the cause from its consequences. `lockstep run` and `spawn` pass each
// worker the writing end of the pipe in LOCKSTEP_NOTE_FD. Without that variable no note is written.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

struct Note {
  std::string kind;     // Error::kind(), or the C++ type of another exception
  std::string message;  // what()
  // The ranks of the job (RANK, not the rank in a subgroup) that caused the error as far as this rank knows:
  // those that have ended or did not answer. Only the first kMostCulprits are sent.
  std::vector<int> culprits;

  // The process has not printed the error: whoever reads the note has to.
  bool untold = false;

  static constexpr size_t kMostCulprits = 64;

  bool operator==(const Note&) const = default;
};

// Not async-signal-safe; never throws. The first note of a process counts; a later note of the same error can
// only mark it as untold. Returns true if the launcher will learn of this error.
bool write_note(const Note& note) noexcept;

std::string encode_note(const Note& note);
std::optional<Note> decode_note(std::string_view bytes);

}  // namespace lockstep::base
