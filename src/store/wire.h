// The encoding of messages between the store's clients and its server.
//
// A frame is a length (four bytes, little-endian) followed by that many bytes. Within a frame, a number takes
// eight bytes, and a text is preceded by its length. Bytes from a connection are untrusted: reading past the
// end of a frame, or leaving bytes unread, throws Malformed without side effects.
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
  // Throws Malformed unless everything has been read.
  void end() const;

 private:
  std::string_view take(size_t size);
  std::string_view rest_;
};

// Splits received bytes into frames.
class Frames {
 public:
  void add(const char* bytes, size_t size) { bytes_.append(bytes, size); }
  // The contents of the next frame, once it is complete. Throws Malformed as soon as its length is known to
  // exceed `most_bytes`.
  std::optional<std::string> next(size_t most_bytes);

 private:
  std::string bytes_;
  size_t taken_ = 0;
};

}  // namespace lockstep::store
