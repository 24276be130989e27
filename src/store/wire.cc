#include "store/wire.h"

namespace lockstep::store {

namespace {

constexpr size_t kLengthBytes = 4;

void append(std::string& bytes, uint64_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

uint64_t decode(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

}  // namespace

Writer& Writer::number(int64_t value) {
  append(bytes_, static_cast<uint64_t>(value), 8);
  return *this;
}

Writer& Writer::text(std::string_view value) {
  number(static_cast<int64_t>(value.size()));
  bytes_ += value;
  return *this;
}

Writer& Writer::texts(const std::vector<std::string>& values) {
  number(static_cast<int64_t>(values.size()));
  for (const auto& value : values) text(value);
  return *this;
}

std::string Writer::frame() const {
  std::string frame;
  append(frame, bytes_.size(), kLengthBytes);
  return frame + bytes_;
}

std::string_view Reader::take(size_t size) {
  if (size > rest_.size()) throw Malformed();
  const auto taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

int64_t Reader::number() { return static_cast<int64_t>(decode(take(8))); }

std::string Reader::text() {
  const auto size = static_cast<uint64_t>(number());
  if (size > rest_.size()) throw Malformed();
  return std::string(take(size));
}

std::vector<std::string> Reader::texts() {
  const auto count = static_cast<uint64_t>(number());
  // Each text takes at least the eight bytes of its length, which bounds a count that can be right.
  if (count > rest_.size() / 8) throw Malformed();
  std::vector<std::string> values;
  for (uint64_t i = 0; i < count; ++i) values.push_back(text());
  return values;
}

void Reader::end() const {
  if (!rest_.empty()) throw Malformed();
}

std::optional<std::string> Frames::next(size_t most_bytes) {
  const std::string_view rest = std::string_view(bytes_).substr(taken_);
  if (rest.size() < kLengthBytes) return std::nullopt;
  const size_t size = decode(rest.substr(0, kLengthBytes));
  if (size > most_bytes) throw Malformed();
  if (rest.size() < kLengthBytes + size) return std::nullopt;
  std::string frame(rest.substr(kLengthBytes, size));
  taken_ += kLengthBytes + size;
  // Not after each frame: erasing moves the rest, and a client may send many small frames at once.
  if (taken_ == bytes_.size() || taken_ > (1 << 16)) {
    bytes_.erase(0, taken_);
    taken_ = 0;
  }
  return frame;
}

}  // namespace lockstep::store
