#include "launch/lines.h"

#include <utility>

namespace lockstep::launch {

namespace {

// The length of the first line in `text`, including its newline.
size_t first_line_bytes(std::string_view text) {
  const auto newline = text.find('\n');
  return newline == std::string_view::npos ? text.size() : newline + 1;
}

}  // namespace

std::string LineAssembler::take_complete() {
  const auto newline = held_.rfind('\n');
  const size_t complete = newline == std::string::npos ? 0 : newline + 1;
  if (held_.size() - complete > kMostBytes) return take_all();
  std::string lines = held_.substr(0, complete);
  held_.erase(0, complete);
  return lines;
}

std::string LineAssembler::take_all() { return std::exchange(held_, {}); }

std::string Prefixer::format(int source, std::string_view prefix, std::string_view text) {
  std::string formatted;
  formatted.reserve(text.size() + 64);
  while (!text.empty()) {
    if (unfinished_by_ != source) {
      if (unfinished_by_ != kNobody) formatted += '\n';
      formatted += prefix;
    }
    const size_t size = first_line_bytes(text);
    formatted += text.substr(0, size);
    unfinished_by_ = text[size - 1] == '\n' ? kNobody : source;
    text.remove_prefix(size);
  }
  return formatted;
}

void Tail::add(int source, std::string_view text) {
  while (!text.empty()) {
    if (unfinished_by_ != source || lines_.empty()) {
      lines_.emplace_back();
      if (lines_.size() > kMostLines) lines_.pop_front();
    }
    const size_t size = first_line_bytes(text);
    const bool finished = text[size - 1] == '\n';
    auto& line = lines_.back();
    line += text.substr(0, size - (finished ? 1 : 0));
    if (line.size() > kMostLineBytes) line.resize(kMostLineBytes);
    unfinished_by_ = finished ? Prefixer::kNobody : source;
    text.remove_prefix(size);
  }
}

}  // namespace lockstep::launch
