#include "train/progress_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <vector>

namespace lockstep::train {

namespace {

constexpr int kSmallestBar = 8, kLargestBar = 40;  // columns, including the brackets
constexpr std::string_view kGap = "  ";

// The width of UTF-8 text in columns. Never too small, or the line would wrap: all characters of scripts that
// have wide characters count as wide.
int columns(std::string_view text) {
  int columns = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 || (byte >= 0xc0 && byte < 0xe0)) ++columns;
    if (byte >= 0xe0) columns += 2;
  }
  return columns;
}

// The first `width` columns, without splitting a character.
std::string cut(std::string_view text, int width) {
  size_t end = 0;
  while (end < text.size()) {
    size_t next = end + 1;
    while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xc0) == 0x80) ++next;
    if (columns(text.substr(0, next)) > width) break;
    end = next;
  }
  return std::string(text.substr(0, end));
}

// Shows step counts in full up to seven digits, because they increase by one.
std::string count_text(int64_t count) {
  return count < 10'000'000 ? std::to_string(count) : short_number(static_cast<double>(count));
}

std::string percent_text(const ProgressState& state) {
  // Rounded down, so that 100 % means finished.
  return state.steps > 0 ? fmt::format("{:3}%", std::min<int64_t>(parts_done(state, 100), 100)) : "";
}

std::string done_text(const ProgressState& state) {
  if (state.steps > 0) {
    const auto steps = count_text(state.steps);
    return fmt::format("{:>{}}/{}", count_text(state.done), steps.size(), steps);
  }
  return fmt::format("{} {}", count_text(state.done), state.done == 1 ? "step" : "steps");
}

std::string loss_text(const ProgressState& state) {
  return state.loss ? fmt::format("loss {:<7.4g}", *state.loss) : "";
}

std::string rate_text(double count, const std::string& unit, double elapsed) {
  return count > 0 && elapsed > 0 ? fmt::format("{:>5} {}/s", short_number(count / elapsed), unit) : "";
}

std::string time_text(const ProgressState& state) {
  if (state.finished) return "in " + duration(state.elapsed);
  if (state.steps == 0 || state.done == 0 || state.done >= state.steps) return "";
  const double left = static_cast<double>(state.steps) - static_cast<double>(state.done);
  return "ETA " + duration(state.elapsed / static_cast<double>(state.done) * left);
}

std::string bar_text(const ProgressState& state, int width, bool colour) {
  const int inside = width - 2;
  const int full = static_cast<int>(std::min<int64_t>(parts_done(state, inside), inside));
  std::string head(full, '=');
  if (full < inside) head += '>';
  const std::string rest(inside - static_cast<int>(head.size()), '-');
  return colour ? fmt::format("[\033[32m{}\033[0m{}]", head, rest) : fmt::format("[{}{}]", head, rest);
}

// The parts of a line, in order. Numbers are padded, so that the bar between them keeps its length.
enum Part { kLabel, kPercent, kBar, kDone, kLoss, kSampleRate, kStepRate, kTime, kParts };
using Parts = std::array<std::string, kParts>;

Parts parts_of(const ProgressState& state) {
  Parts parts;
  parts[kLabel] = state.label;
  parts[kPercent] = percent_text(state);
  parts[kDone] = done_text(state);
  parts[kLoss] = loss_text(state);
  parts[kSampleRate] = rate_text(state.samples, state.unit, state.elapsed);
  parts[kStepRate] = rate_text(static_cast<double>(state.done), "steps", state.elapsed);
  parts[kTime] = time_text(state);
  return parts;
}

std::string join(const Parts& parts) {
  std::string line;
  for (const auto& part : parts) {
    if (part.empty()) continue;
    if (!line.empty()) line += kGap;
    line += part;
  }
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

}  // namespace

int64_t parts_done(const ProgressState& state, int64_t parts) {
  if (state.steps == 0) return 0;
  return static_cast<int64_t>(static_cast<double>(state.done) * static_cast<double>(parts) /
                              static_cast<double>(state.steps));
}

std::string plain_line(const ProgressState& state) { return join(parts_of(state)); }

std::string bar_line(const ProgressState& state, int width, bool colour) {
  auto parts = parts_of(state);
  const bool with_bar = state.steps > 0;
  const auto room_for_bar = [&] { return width - columns(join(parts)) - static_cast<int>(kGap.size()); };
  if (with_bar && room_for_bar() < kSmallestBar) parts[kStepRate].clear();
  // In the order in which parts are left out, the least important first.
  for (const auto part : {kStepRate, kSampleRate, kLabel, kDone, kTime, kLoss}) {
    if (columns(join(parts)) <= width) break;
    parts[part].clear();
  }
  if (with_bar && room_for_bar() >= kSmallestBar) {
    // From here on the line must not be cut: it contains colour codes, which have no width.
    parts[kBar] = bar_text(state, std::min(room_for_bar(), kLargestBar), colour);
    return join(parts);
  }
  return cut(join(parts), width);
}

std::string short_number(double value) {
  constexpr std::string_view kSuffixes = " kMGTPE";
  if (!std::isfinite(value)) return "?";
  size_t suffix = 0;
  // Three digits would round to 1000 from here on; the limits below do the same for 100 and 10.
  while (value >= 999.5 && suffix + 1 < kSuffixes.size()) {
    value /= 1000;
    ++suffix;
  }
  std::string text;
  if (value >= 999.5 || value < 0.9995) {
    text = fmt::format("{:.3g}", value);
  } else {
    text = fmt::format("{:.{}f}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
  }
  if (suffix > 0) text += kSuffixes[suffix];
  return text;
}

std::string duration(double seconds) {
  // Also for NaN. A thousand years is no useful estimate, and larger values overflow the integer.
  if (!(seconds < 3e10)) return "?";
  const int64_t whole = std::llround(std::max(seconds, 0.0));
  const auto hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours >= 100) return fmt::format("{}d {:02}h", hours / 24, hours % 24);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string without_controls(std::string_view text) {
  std::string result(text);
  std::replace_if(
      result.begin(), result.end(), [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; }, ' ');
  return result;
}

}  // namespace lockstep::train
