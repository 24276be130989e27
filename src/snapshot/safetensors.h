// The header of a safetensors file: 8 bytes with its length, then JSON that says where each tensor's bytes
// are.
//
// Parsing trusts nothing: it keeps no more than it needs of any input, and what it returns is consistent.
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
inline constexpr size_t kMostDimensions = 64;              // what LibTorch's loops can take

// The format's name for a type ("F32"), and the type for a name; nothing where the other side has none.
std::optional<std::string_view> dtype_name(at::ScalarType dtype);
std::optional<at::ScalarType> dtype_named(std::string_view name);

struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // its bytes, counted from the end of the header
};

struct Header {
  std::map<std::string, std::string> metadata;
  std::vector<TensorInfo> tensors;  // as they stand in the header, which need not be the order of their bytes

  uint64_t data_bytes() const;
  // Indices into `tensors`, by where their bytes begin.
  std::vector<size_t> by_offset() const;
};

// Not a header. The message begins with "it" or "its": the file, which only the caller knows.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws unless the tensors lie one after another without a gap, each as long as its type and shape say. What
// was read of the metadata is in `header` even then.
void parse_header(std::string_view json, Header& header);

// The length and the JSON, the metadata before the tensors, padded so that the data begins at a multiple of
// 64 bytes. Throws on text that is not UTF-8 and on names that occur twice.
std::string encode_header(const Header& header);

// The length of the JSON in the first kLengthBytes of a file of this size. Throws where none can follow.
uint64_t header_bytes(std::string_view first_bytes, uint64_t file_bytes);

}  // namespace lockstep::snapshot
