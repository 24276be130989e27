// Appends the few pickle opcodes (protocol 2) that a state dict needs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::snapshot {

class PickleWriter {
 public:
  PickleWriter() { bytes_ = "\x80\x02"; }

  void global(std::string_view module, std::string_view name) {
    bytes_.append("c").append(module).append("\n").append(name).append("\n");
  }
  void text(std::string_view utf8) {
    bytes_ += 'X';
    little_endian(utf8.size(), 4);
    bytes_ += utf8;
  }
  void integer(int64_t value) {
    const bool small = value == static_cast<int32_t>(value);
    bytes_ += small ? "J" : "\x8a\x08";
    little_endian(static_cast<uint64_t>(value), small ? 4 : 8);
  }
  void integers(const auto& values) {
    mark();
    for (const auto value : values) integer(value);
    tuple();
  }
  void no() { bytes_ += '\x89'; }
  void mark() { bytes_ += '('; }
  void tuple() { bytes_ += 't'; }  // of all values since the mark
  void empty_tuple() { bytes_ += ')'; }
  void call() { bytes_ += 'R'; }        // calls the value below the tuple with the tuple as arguments
  void set_items() { bytes_ += 'u'; }   // adds the keys and values since the mark to the dict below it
  void persistent() { bytes_ += 'Q'; }  // the tuple identifies an object outside the pickle
  std::string finish() && {
    bytes_ += '.';
    return std::move(bytes_);
  }

 private:
  void little_endian(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>(value >> (8 * i));
  }

  std::string bytes_;
};

}  // namespace lockstep::snapshot
