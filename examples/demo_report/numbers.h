// Formats numbers for reading.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string>

namespace demo {

// 12,345; rounded to an integer.
inline std::string grouped(double value) {
  auto text = std::to_string(std::llround(value));
  for (auto position = static_cast<int>(text.size()) - 3; position > (value < 0 ? 1 : 0); position -= 3)
    text.insert(position, 1, ',');
  return text;
}

inline std::string bytes_text(int64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  if (bytes < 1'000'000) return fmt::format("{:.0f} kB", static_cast<double>(bytes) / 1e3);
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

inline std::string processes(int count) { return fmt::format("{} process{}", count, count == 1 ? "" : "es"); }

inline std::string capital_number(int count) {
  constexpr std::array kWords = {"No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight"};
  return static_cast<size_t>(count) < kWords.size() ? kWords[count] : std::to_string(count);
}

}  // namespace demo
