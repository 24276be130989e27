// How the store's clients and its server put messages into bytes.
//
// A frame is its length, four bytes with the lowest first, and that many bytes. In it, numbers have eight
// bytes and texts are preceded by their length. Bytes from a connection are data: reading past the end, or
// leaving something unread, throws Malformed and nothing else happens.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::store {

struct Malformed : std::exception {
  const char* what() const noexcept override { return "the bytes are not a message of the store"; }
};

class Writer {
 public:
  Writer& number(int64_t value);
  Writer& text(std::string_view value);
  Writer& texts(const std::vector<std::string>& values);
  std::string frame() const;

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  int64_t number();
  std::string text();
  std::vector<std::string> texts();
  // Throws unless everything has been read.
  void end() const;

 private:
  std::string_view take(size_t size);
  std::string_view rest_;
};

// Bytes as they arrive, frame by frame.
class Frames {
 public:
  void add(const char* bytes, size_t size) { bytes_.append(bytes, size); }
  // What the next complete frame holds. Throws Malformed for one of more than `most_bytes`, as soon as that
  // is known.
  std::optional<std::string> next(size_t most_bytes);

 private:
  std::string bytes_;
  size_t taken_ = 0;
};

}  // namespace lockstep::store
