// The header of a safetensors file: 8 bytes with its length, then JSON with the position of each tensor.
//
// The parser accepts any input: it uses memory only for a valid header, and what it returns is consistent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep::snapshot {

inline constexpr uint64_t kLengthBytes = 8;
inline constexpr uint64_t kMostHeaderBytes = 100'000'000;  // as in the reference implementation
inline constexpr size_t kMostDimensions = 64;              // the limit of LibTorch's loops

// The name of a type in the format ("F32"), and the type with a name; nothing if there is none.
std::optional<std::string_view> dtype_name(at::ScalarType dtype);
std::optional<at::ScalarType> dtype_named(std::string_view name);

struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // offsets in bytes from the end of the header
};

struct Header {
  std::map<std::string, std::string> metadata;
  std::vector<TensorInfo> tensors;  // in the order of the header, which may differ from that of their bytes

  uint64_t data_bytes() const;
  // Indices into `tensors`, ordered by the offsets of their bytes.
  std::vector<size_t> by_offset() const;
};

// The text is not a header. The message begins with "it" or "its": the file, which only the caller knows.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws FormatError unless the tensors follow each other without gaps, each with the size of its type and
// shape. `header` then contains the metadata that was read before the error.
void parse_header(std::string_view json, Header& header);

// Returns the length and the JSON, with the metadata before the tensors, padded so that the data starts at a
// multiple of 64 bytes. Throws FormatError for text that is not UTF-8 and for duplicate names.
std::string encode_header(const Header& header);

// Reads the length of the JSON from the first kLengthBytes of a file of this size. Throws FormatError if it
// cannot be right.
uint64_t header_bytes(std::string_view first_bytes, uint64_t file_bytes);

}  // namespace lockstep::snapshot
