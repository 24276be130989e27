// What a worker tells the agent that started it about the error it met.
//
// A rank that fails because another one failed exits too, sometimes within the same millisecond. From the
// notes the agent can tell the cause from its consequences. `lockstep run` and `spawn` give each worker the
// writing end of a pipe in LOCKSTEP_NOTE_FD; without it a note goes nowhere.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::base {

struct Note {
  std::string kind;     // Error::kind(), or the C++ type of a foreign exception
  std::string message;  // what()

  bool operator==(const Note&) const = default;
};

// Async-signal-unsafe, never throws. The first note of a process is the one that counts.
void write_note(const Note& note) noexcept;

std::string encode_note(const Note& note);
std::optional<Note> decode_note(std::string_view bytes);

}  // namespace lockstep::base
