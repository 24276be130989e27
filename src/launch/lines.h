// From bytes to lines: what the output thread does with the text of the workers. Pure.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

// Holds the bytes of one stream back until a line is complete.
class LineAssembler {
 public:
  // An unfinished line longer than this is handed out in pieces, so that memory stays bounded.
  static constexpr size_t kMostBytes = 64 * 1024;

  void add(std::string_view bytes) { held_.append(bytes); }
  // All complete lines, newlines included; also an unfinished line that has grown too long.
  std::string take_complete();
  // Everything, finished or not.
  std::string take_all();
  bool empty() const { return held_.empty(); }

 private:
  std::string held_;
};

// Puts a prefix before each line of several sources that share one file, and never lets text of one source
// stand in a line of another: an unfinished line is ended when another source speaks, and continued without
// a new prefix when its own source does.
class Prefixer {
 public:
  static constexpr int kNobody = -1;

  std::string format(int source, std::string_view prefix, std::string_view text);

 private:
  int unfinished_by_ = kNobody;
};

// The last lines of a rank, each cut to a bounded length.
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
