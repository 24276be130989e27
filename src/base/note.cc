#include "base/note.h"

#include <algorithm>
#include <climits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"

namespace lockstep::base {

namespace {

// Writes of up to PIPE_BUF (4096 bytes on Linux) to a pipe are atomic, and never block on an empty pipe.
constexpr size_t kMostBytes = 4000;

// Empty if the field is missing or is not a list of ranks: the rest of the note is still useful.
std::vector<int> culprits_in(const nlohmann::json& note) {
  const auto list = note.find("culprits");
  if (list == note.end() || !list->is_array() || list->size() > Note::kMostCulprits) return {};
  std::vector<int> ranks;
  for (const auto& rank : *list) {
    if (!rank.is_number_unsigned() || rank.get<uint64_t>() > INT_MAX) return {};
    ranks.push_back(rank.get<int>());
  }
  return ranks;
}

std::optional<Note> note_in(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("kind") || !json.contains("message")) return std::nullopt;
  if (!json["kind"].is_string() || !json["message"].is_string()) return std::nullopt;
  const auto untold = json.find("untold");
  return Note{json["kind"], json["message"], culprits_in(json), untold != json.end() && *untold == true};
}

// The first note that this process has written. A forked child has not written any yet.
struct First {
  std::mutex mutex;
  pid_t pid = 0;
  std::string message;
};

}  // namespace

std::string encode_note(const Note& note) {
  std::string message = note.message;
  for (;;) {
    nlohmann::json json{{"kind", note.kind}, {"message", message}};
    if (!note.culprits.empty()) {
      const auto most = std::min(note.culprits.size(), Note::kMostCulprits);
      json["culprits"] =
          std::vector<int>(note.culprits.begin(), note.culprits.begin() + static_cast<long>(most));
    }
    if (note.untold) json["untold"] = true;
    std::string line = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (line.size() < kMostBytes || message.empty()) return line + "\n";
    message.resize(message.size() / 2);
  }
}

std::optional<Note> decode_note(std::string_view bytes) {
  std::optional<Note> first;
  while (!bytes.empty()) {
    const auto end = std::min(bytes.find('\n'), bytes.size());
    auto note = note_in(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (!first && !note) return std::nullopt;
    if (!first) {
      first = std::move(note);
    } else if (note && note->message == first->message) {
      first->untold = first->untold || note->untold;
    }
  }
  return first;
}

bool write_note(const Note& note) noexcept {
  try {
    // Never destroyed, because other threads may fail while the process exits.
    static auto& first = *new First;
    const auto fd = env_int("LOCKSTEP_NOTE_FD", 3, 1 << 20);
    struct stat status {};
    // A grandchild may inherit the variable while its descriptor of that number is another file.
    if (!fd || ::fstat(static_cast<int>(*fd), &status) != 0 || !S_ISFIFO(status.st_mode)) return false;
    const std::lock_guard lock(first.mutex);
    const bool again = first.pid == ::getpid();
    if (again && (first.message != note.message || !note.untold)) return first.message == note.message;
    const std::string line = encode_note(note);
    if (::write(static_cast<int>(*fd), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      return false;
    first.pid = ::getpid();
    first.message = note.message;
    return true;
  } catch (...) {
    return false;  // a note is optional; the error itself is thrown elsewhere
  }
}

}  // namespace lockstep::base
