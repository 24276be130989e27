#include "snapshot/numbers.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string_view>
#include <system_error>

namespace lockstep::snapshot {

using nlohmann::json;

namespace {

constexpr const char* kDouble = "double";

struct NamedNumber {
  std::string_view name;
  uint64_t bits;
};
constexpr NamedNumber kNamedNumbers[] = {{"inf", 0x7ff0000000000000},
                                         {"-inf", 0xfff0000000000000},
                                         {"nan", 0x7ff8000000000000},
                                         {"-nan", 0xfff8000000000000}};

std::optional<double> from_bits(std::string_view text) {
  uint64_t bits = 0;
  if (!text.starts_with("0x")) return std::nullopt;
  const auto* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data() + 2, end, bits, 16);
  if (error != std::errc() || parsed != end) return std::nullopt;
  return std::bit_cast<double>(bits);
}

// The text in {"double": text}; null for anything else.
const std::string* text_in(const json& saved) {
  if (!saved.is_object() || saved.size() != 1) return nullptr;
  const auto found = saved.find(kDouble);
  return found == saved.end() ? nullptr : found->get_ptr<const std::string*>();
}

}  // namespace

json number_to_json(double number) {
  if (std::isfinite(number)) return number;
  const auto bits = std::bit_cast<uint64_t>(number);
  for (const auto& named : kNamedNumbers) {
    if (named.bits == bits) return {{kDouble, named.name}};
  }
  return {{kDouble, fmt::format("{:#018x}", bits)}};
}

std::optional<double> number_from_json(const json& saved) {
  if (saved.is_number()) return saved.get<double>();
  if (const auto* bits = saved.get_ptr<const std::string*>()) return from_bits(*bits);
  const auto* text = text_in(saved);
  if (!text) return std::nullopt;
  for (const auto& named : kNamedNumbers) {
    if (named.name == *text) return std::bit_cast<double>(named.bits);
  }
  return from_bits(*text);
}

std::string readable(const json& saved) {
  const auto* text = text_in(saved);
  // Any other text comes from a foreign program; JSON escapes it.
  return text && number_from_json(saved) ? *text : saved.dump();
}

}  // namespace lockstep::snapshot
