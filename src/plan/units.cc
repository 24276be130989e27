#include "plan/units.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <span>
#include <string_view>

namespace lockstep::plan {

namespace {

struct Unit {
  std::string_view name;
  double value;
};

constexpr Unit kNone[] = {{"", 1}};
constexpr Unit kCounts[] = {{"", 1},    {"k", 1e3}, {"K", 1e3}, {"m", 1e6},  {"M", 1e6}, {"g", 1e9},
                            {"G", 1e9}, {"b", 1e9}, {"B", 1e9}, {"t", 1e12}, {"T", 1e12}};
constexpr Unit kTimes[] = {{"ns", 1e-9}, {"us", 1e-6}, {"µs", 1e-6}, {"ms", 1e-3}, {"s", 1}};
constexpr Unit kRates[] = {{"bit", 1},    {"kbit", 1e3},   {"Mbit", 1e6},   {"Gbit", 1e9},   {"Tbit", 1e12},
                           {"bit/s", 1},  {"kbit/s", 1e3}, {"Mbit/s", 1e6}, {"Gbit/s", 1e9}, {"Tbit/s", 1e12},
                           {"kbps", 1e3}, {"Mbps", 1e6},   {"Gbps", 1e9},   {"Tbps", 1e12},  {"kB/s", 8e3},
                           {"MB/s", 8e6}, {"GB/s", 8e9}};

std::optional<double> parse(const std::string& text, std::span<const Unit> units) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number < 0) return std::nullopt;
  const std::string_view name(rest, static_cast<size_t>(end - rest));
  for (const auto& unit : units) {
    // The product may be infinite although the number is not.
    if (unit.name == name && std::isfinite(number * unit.value)) return number * unit.value;
  }
  return std::nullopt;
}

// Three significant digits, without zeros at the end; whole numbers from 100 on.
std::string digits(double number) {
  if (number >= 99.95) return fmt::format("{:.0f}", number);
  auto text = fmt::format("{:.{}f}", number, number >= 9.995 ? 1 : 2);
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return text;
}

// In the largest unit of which it is at least one; the units are ascending.
std::string with_unit(double number, std::span<const Unit> units) {
  const Unit* best = &units.front();
  for (const auto& unit : units) {
    if (number >= unit.value * 0.9995) best = &unit;
  }
  const auto text = digits(number / best->value);
  return best->name.empty() ? text : fmt::format("{} {}", text, best->name);
}

}  // namespace

std::optional<double> parse_number(const std::string& text) { return parse(text, kNone); }
std::optional<double> parse_count(const std::string& text) { return parse(text, kCounts); }
std::optional<double> parse_seconds(const std::string& text) { return text == "0" ? 0 : parse(text, kTimes); }
std::optional<double> parse_bits_per_s(const std::string& text) { return parse(text, kRates); }

std::string seconds_text(double seconds) {
  static constexpr Unit kUnits[] = {{"µs", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"h", 3600}};
  return with_unit(seconds, kUnits);
}

std::string bytes_text(double bytes) {
  static constexpr Unit kUnits[] = {{"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
                                    {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50}};
  return with_unit(bytes, kUnits);
}

std::string bits_per_s_text(double bits_per_s) {
  static constexpr Unit kUnits[] = {
      {"bit/s", 1}, {"kbit/s", 1e3}, {"Mbit/s", 1e6}, {"Gbit/s", 1e9}, {"Tbit/s", 1e12}};
  return with_unit(bits_per_s, kUnits);
}

std::string count_text(double count) {
  static constexpr Unit kUnits[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}};
  return with_unit(count, kUnits);
}

}  // namespace lockstep::plan
