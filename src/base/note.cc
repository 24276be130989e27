#include "base/note.h"

#include <algorithm>
#include <climits>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"

namespace lockstep::base {

namespace {

// A write of this size to a pipe is atomic (PIPE_BUF is 4096 on Linux) and never blocks on an empty pipe.
constexpr size_t kMostBytes = 4000;

// None when the field is missing or is not a list of ranks: the note says enough without it.
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
    std::string line = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (line.size() < kMostBytes || message.empty()) return line + "\n";
    message.resize(message.size() / 2);
  }
}

std::optional<Note> decode_note(std::string_view bytes) {
  const auto line = bytes.substr(0, bytes.find('\n'));
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("kind") || !json.contains("message")) return std::nullopt;
  if (!json["kind"].is_string() || !json["message"].is_string()) return std::nullopt;
  return Note{json["kind"], json["message"], culprits_in(json)};
}

void write_note(const Note& note) noexcept {
  try {
    const auto fd = env_int("LOCKSTEP_NOTE_FD", 3, 1 << 20);
    struct stat status {};
    // The number may have come down to a grandchild in which it means another file.
    if (!fd || ::fstat(static_cast<int>(*fd), &status) != 0 || !S_ISFIFO(status.st_mode)) return;
    const std::string line = encode_note(note);
    [[maybe_unused]] const auto written = ::write(static_cast<int>(*fd), line.data(), line.size());
  } catch (...) {
    // A note is a courtesy; the error itself is being thrown elsewhere.
  }
}

}  // namespace lockstep::base
