// Splits the workers' output into lines for the output thread. No side effects.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

// Buffers the bytes of one stream until a line is complete.
class LineAssembler {
 public:
  // A longer unfinished line is returned in pieces, so that memory stays bounded.
  static constexpr size_t kMostBytes = 64 * 1024;

  void add(std::string_view bytes) { held_.append(bytes); }
  // All complete lines with their newlines, and an unfinished line that has become too long.
  std::string take_complete();
  // Everything, including an unfinished line.
  std::string take_all();
  bool empty() const { return held_.empty(); }

 private:
  std::string held_;
};

// Prefixes the lines of several sources that are written to one file, and never mixes two sources in one
// line: if another source writes, an unfinished line is ended with a newline; if the same source does, it is
// continued without a new prefix.
class Prefixer {
 public:
  static constexpr int kNobody = -1;

  std::string format(int source, std::string_view prefix, std::string_view text);

 private:
  int unfinished_by_ = kNobody;
};

// The last lines of a rank, each truncated to a maximum length.
class Tail {
 public:
  static constexpr size_t kMostLines = 20;
  static constexpr size_t kMostLineBytes = 1000;

  void add(int source, std::string_view text);
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
  int unfinished_by_ = Prefixer::kNobody;
};

}  // namespace lockstep::launch
