#include "launch/shown.h"

#include <cstdint>
#include <fmt/format.h>
#include <optional>

namespace lockstep::launch {

namespace {

constexpr std::string_view kCut = "…";

struct Character {
  size_t bytes = 1;
  uint32_t code = 0;
  bool valid = false;
};

// The first character of `text`, which is not empty. Overlong forms and surrogates are not valid.
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (byte(0) < 0x80) return {1, byte(0), true};
  const size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes) return {};
  uint32_t code = byte(0) & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {bytes, code, true};
}

bool harmless(uint32_t code) {
  if (code < 0x20) return code == '\t';
  if (code >= 0x7f && code <= 0x9f) return false;
  // Separators of lines and paragraphs, and what turns the direction of writing.
  return !(code >= 0x2028 && code <= 0x202e) && !(code >= 0x2066 && code <= 0x2069);
}

std::string shown_character(std::string_view text, const Character& character) {
  if (character.valid && harmless(character.code)) return std::string(text.substr(0, character.bytes));
  if (character.valid && character.code > 0xff) return fmt::format("\\u{:04x}", character.code);
  return fmt::format("\\x{:02x}", character.valid ? character.code : static_cast<uint8_t>(text[0]));
}

// Without an indent, newlines are escaped.
std::string shown(std::string_view text, size_t most_bytes, std::optional<std::string_view> indent) {
  std::string result;
  size_t cut_at = 0;  // where the text must end for the mark of the cut to have room
  while (!text.empty()) {
    const auto character = first_character(text);
    std::string piece;
    if (indent && character.code == '\n' && character.valid) {
      piece = "\n";
      if (!text.substr(1).starts_with(*indent)) piece += *indent;
    } else {
      piece = shown_character(text, character);
    }
    if (result.size() + piece.size() > most_bytes) return result.substr(0, cut_at).append(kCut);
    result += piece;
    if (result.size() + kCut.size() <= most_bytes) cut_at = result.size();
    text.remove_prefix(character.bytes);
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
