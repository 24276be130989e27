// What a worker tells the agent that started it about the error it met.
//
// A rank that fails because another one failed exits too, sometimes within the same millisecond. From the
// notes the agent can tell the cause from its consequences. `lockstep run` and `spawn` give each worker the
// writing end of a pipe in LOCKSTEP_NOTE_FD; without it a note goes nowhere.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

struct Note {
  std::string kind;     // Error::kind(), or the C++ type of a foreign exception
  std::string message;  // what()
  // The ranks of the job (RANK, not the rank in a subgroup) that are the reason, as far as this rank can
  // tell: those that are gone or did not answer. Only the first kMostCulprits are passed on.
  std::vector<int> culprits;

  // The process has not printed it: whoever reads the note does.
  bool untold = false;

  static constexpr size_t kMostCulprits = 64;

  bool operator==(const Note&) const = default;
};

// Async-signal-unsafe, never throws. The first note of a process is the one that counts; a later one of the
// same error can only say that it is untold. True if the agent will know of this error.
bool write_note(const Note& note) noexcept;

std::string encode_note(const Note& note);
std::optional<Note> decode_note(std::string_view bytes);

}  // namespace lockstep::base
