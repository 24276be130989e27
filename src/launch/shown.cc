#include "launch/shown.h"

#include <optional>

#include "base/printable.h"

namespace lockstep::launch {

namespace {

constexpr std::string_view kCut = "…";

// nullopt as indent: newlines are escaped.
std::string shown(std::string_view text, size_t most_bytes, std::optional<std::string_view> indent) {
  std::string result;
  size_t cut_at = 0;  // where to truncate the text so that kCut still fits
  while (!text.empty()) {
    std::string piece;
    if (text.front() == '\t' || (indent && text.front() == '\n')) {
      piece = text.front();
      text.remove_prefix(1);
      if (piece == "\n" && !text.starts_with(*indent)) piece += *indent;
    } else {
      piece = base::take_printable(text);
    }
    if (result.size() + piece.size() > most_bytes) return result.substr(0, cut_at).append(kCut);
    result += piece;
    if (result.size() + kCut.size() <= most_bytes) cut_at = result.size();
  }
  return result;
}

}  // namespace

std::string shown_line(std::string_view text, size_t most_bytes) {
  return shown(text, most_bytes, std::nullopt);
}

std::string shown_lines(std::string_view text, size_t most_bytes, std::string_view indent) {
  return shown(text, most_bytes, indent);
}

}  // namespace lockstep::launch
