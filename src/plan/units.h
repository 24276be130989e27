// Numbers with units as people write them: "350M", "50us", "25Gbit". Pure functions.
#pragma once

#include <optional>
#include <string>

namespace lockstep::plan {

// Each returns nullopt unless `text` is one non-negative, finite number with one of the units, without
// spaces.

std::optional<double> parse_number(const std::string& text);
// 1e9, 350M, 7B. K, M, G (or B, billion) and T are powers of 1000.
std::optional<double> parse_count(const std::string& text);
// ns, us (or µs), ms, s. Without a unit, only 0.
std::optional<double> parse_seconds(const std::string& text);
// kbit, Mbit, Gbit, also with /s, as Mbps, and in bytes: MB/s, GB/s. Powers of 1000.
std::optional<double> parse_bits_per_s(const std::string& text);

// With three significant digits: "300 ms", "7.46 GiB", "25 Gbit/s", "350 M".
std::string seconds_text(double seconds);
std::string bytes_text(double bytes);
std::string bits_per_s_text(double bits_per_s);
std::string count_text(double count);

}  // namespace lockstep::plan
