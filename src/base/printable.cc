#include "base/printable.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>

namespace lockstep::base {

namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: not UTF-8
};

// The first character of a non-empty text.
Character first_of(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto lead = at(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (at(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[bytes] || code > 0x10ffff || surrogate) return {};
  return {code, bytes};
}

bool is_harmless(uint32_t code) {
  const auto between = [code](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  return !(code < 0x20 || between(0x7f, 0x9f) ||                  // control characters
           between(0x200b, 0x200f) || between(0x2028, 0x202e) ||  // zero width, line ends, writing direction
           between(0x2060, 0x206f) || code == 0xfeff ||
           between(0xe0000, 0xe007f));  // tags, which are invisible
}

}  // namespace

std::string take_printable(std::string_view& text) {
  const auto [code, bytes] = first_of(text);
  const auto taken = text.substr(0, std::max<size_t>(bytes, 1));
  text.remove_prefix(taken.size());
  if (bytes == 0) return fmt::format("\\x{:02x}", static_cast<uint8_t>(taken.front()));
  if (code == '\n' || code == '\t' || code == '\r')
    return code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r";
  if (is_harmless(code)) return std::string(taken);
  return code < 0x80 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) out += take_printable(text);
  return out;
}

std::string quote(std::string_view text) {
  constexpr size_t kShown = 120;
  auto end = std::min(text.size(), kShown);
  // Do not cut within a character.
  while (end < text.size() && end > kShown - 4 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  std::string quoted = "\"";
  for (auto rest = text.substr(0, end); !rest.empty();) {
    if (rest.front() == '"' || rest.front() == '\\') quoted += '\\';
    quoted += take_printable(rest);
  }
  return quoted + (end == text.size() ? "\"" : "\"…");
}

}  // namespace lockstep::base
