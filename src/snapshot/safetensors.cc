#include "snapshot/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "base/printable.h"

namespace lockstep::snapshot {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace {

constexpr std::string_view kMetadata = "__metadata__";
constexpr uint64_t kDataAlignment = 64;

// LibTorch's types by name, because older versions do not have the last ones.
constexpr std::pair<std::string_view, std::string_view> kDtypeNames[] = {{"F64", "Double"},
                                                                         {"F32", "Float"},
                                                                         {"F16", "Half"},
                                                                         {"BF16", "BFloat16"},
                                                                         {"I64", "Long"},
                                                                         {"I32", "Int"},
                                                                         {"I16", "Short"},
                                                                         {"I8", "Char"},
                                                                         {"U8", "Byte"},
                                                                         {"BOOL", "Bool"},
                                                                         {"C64", "ComplexFloat"},
                                                                         {"U64", "UInt64"},
                                                                         {"U32", "UInt32"},
                                                                         {"U16", "UInt16"},
                                                                         {"F8_E5M2", "Float8_e5m2"},
                                                                         {"F8_E4M3", "Float8_e4m3fn"}};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw FormatError(fmt::format(format, std::forward<Args>(args)...));
}

// Processes the JSON while it is parsed, so that text that is not a header takes no memory, however deep or
// long it is.
class HeaderParser : public json::json_sax_t {
 public:
  explicit HeaderParser(Header& header) : header_(header) {}

  bool start_object(std::size_t) override {
    if (at_ == At::Start) {
      at_ = At::Top;
    } else if (at_ == At::Top && key_ == kMetadata) {
      at_ = At::Metadata;
    } else if (at_ == At::Top) {
      at_ = At::Tensor;
      header_.tensors.push_back({.name = key_});
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& key) override {
    key_ = key;
    if (at_ == At::Top && !names_.insert(key).second) refuse("its header names {} twice", base::quote(key));
    if (at_ == At::Metadata && header_.metadata.contains(key)) {
      refuse("its metadata has {} twice", base::quote(key));
    }
    return true;
  }

  bool end_object() override {
    if (at_ == At::Tensor && !(has_dtype_ && has_shape_ && has_offsets_)) {
      refuse("its header lacks the dtype, shape or data_offsets of {}", here());
    }
    at_ = at_ == At::Top ? At::End : At::Top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (at_ == At::Tensor && key_ == "shape" && !has_shape_) {
      at_ = At::Shape;
      has_shape_ = true;
    } else if (at_ == At::Tensor && key_ == "data_offsets" && !has_offsets_) {
      at_ = At::Offsets;
      has_offsets_ = true;
      offsets_ = 0;
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    if (at_ == At::Offsets && offsets_ != 2)
      refuse("its header does not give two data_offsets for {}", here());
    at_ = At::Tensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (at_ == At::Shape) {
      auto& shape = header_.tensors.back().shape;
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        refuse("its header gives {} a dimension of {}", here(), number);
      }
      if (shape.size() == kMostDimensions) {
        refuse("its header gives {} more than {} dimensions", here(), kMostDimensions);
      }
      shape.push_back(static_cast<int64_t>(number));
    } else if (at_ == At::Offsets && offsets_ < 2) {
      auto& tensor = header_.tensors.back();
      (offsets_++ == 0 ? tensor.begin : tensor.end) = number;
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool string(string_t& text) override {
    if (at_ == At::Metadata) {
      header_.metadata.emplace(key_, text);
    } else if (at_ == At::Tensor && key_ == "dtype" && !has_dtype_) {
      const auto dtype = dtype_named(text);
      if (!dtype)
        refuse("its header gives {} the type {}, which LibTorch does not have", here(), base::quote(text));
      header_.tensors.back().dtype = *dtype;
      has_dtype_ = true;
    } else {
      unexpected("a text");
    }
    return true;
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { unexpected("a number that is not whole"); }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    refuse("its header is not JSON (byte {})", position);
  }

 private:
  enum class At { Start, Top, Metadata, Tensor, Shape, Offsets, End };

  std::string here() const { return base::quote(header_.tensors.back().name); }
  [[noreturn]] void unexpected(const char* found) const {
    switch (at_) {
      case At::Start:
      case At::End:
        refuse("its header is {}, not an object", found);
      case At::Top:
        refuse("its header has {} for {}, not an object", found, base::quote(key_));
      case At::Metadata:
        refuse("its metadata has {} for {}, not a text", found, base::quote(key_));
      default:
        refuse("its header has {} in {} of {}", found, base::quote(key_), here());
    }
  }

  Header& header_;
  At at_ = At::Start;
  std::string key_;
  std::unordered_set<std::string> names_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
};

// The size of a tensor in bytes. Dimensions of 0 count as 1 in the overflow check, because strides are
// computed that way.
uint64_t bytes_of(const TensorInfo& tensor) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  bool empty = false;
  for (const auto dimension : tensor.shape) {
    empty |= dimension == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(dimension, 1), &bytes)) {
      refuse("its header gives {} the shape [{}], which exceeds any memory", base::quote(tensor.name),
             fmt::join(tensor.shape, ", "));
    }
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

void check_offsets(const Header& header) {
  uint64_t expected = 0;
  for (const auto index : header.by_offset()) {
    const auto& tensor = header.tensors[index];
    if (tensor.begin != expected || tensor.end < tensor.begin) {
      refuse("its header puts {} at bytes {} to {}; they must begin at {}, where the previous tensor ends",
             base::quote(tensor.name), tensor.begin, tensor.end, expected);
    }
    if (const auto wanted = bytes_of(tensor); tensor.end - tensor.begin != wanted) {
      refuse("its header gives {} {} bytes; {} [{}] has {}", base::quote(tensor.name),
             tensor.end - tensor.begin, *dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "), wanted);
    }
    expected = tensor.end;
  }
}

// The text as JSON, including the quotation marks.
std::string json_text(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    refuse("its text {} is not UTF-8", base::quote(text));
  }
}

}  // namespace

std::optional<std::string_view> dtype_name(at::ScalarType dtype) {
  for (const auto& [name, torch_name] : kDtypeNames) {
    if (torch_name == c10::toString(dtype)) return name;
  }
  return std::nullopt;
}

std::optional<at::ScalarType> dtype_named(std::string_view name) {
  const auto* found = std::find_if(std::begin(kDtypeNames), std::end(kDtypeNames),
                                   [&](const auto& dtype) { return dtype.first == name; });
  if (found == std::end(kDtypeNames)) return std::nullopt;
  for (int8_t i = 0; i < static_cast<int8_t>(at::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (c10::toString(dtype) == found->second) return dtype;
  }
  return std::nullopt;
}

uint64_t Header::data_bytes() const {
  uint64_t bytes = 0;
  for (const auto& tensor : tensors) bytes = std::max(bytes, tensor.end);
  return bytes;
}

std::vector<size_t> Header::by_offset() const {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(tensors[a].begin, tensors[a].end) < std::pair(tensors[b].begin, tensors[b].end);
  });
  return order;
}

void parse_header(std::string_view text, Header& header) {
  HeaderParser parser(header);
  json::sax_parse(text, &parser);
  check_offsets(header);
}

std::string encode_header(const Header& header) {
  std::string text = "{";
  text += fmt::format("{}:{{", json_text(std::string(kMetadata)));
  const char* comma = "";
  for (const auto& [key, value] : header.metadata) {
    text += fmt::format("{}{}:{}", comma, json_text(key), json_text(value));
    comma = ",";
  }
  text += "}";
  std::unordered_set<std::string_view> names{kMetadata};
  for (const auto& tensor : header.tensors) {
    if (!names.insert(tensor.name).second) {
      refuse("it would contain two tensors with the name {}", base::quote(tensor.name));
    }
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_text(tensor.name),
                        *dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  }
  text += "}";
  const uint64_t beyond = (kLengthBytes + text.size()) % kDataAlignment;
  if (beyond != 0) text.append(kDataAlignment - beyond, ' ');
  if (text.size() > kMostHeaderBytes) {
    refuse("its header would have {} bytes, but readers accept {} at most", text.size(), kMostHeaderBytes);
  }
  const uint64_t length = text.size();
  std::string encoded(kLengthBytes, '\0');
  std::memcpy(encoded.data(), &length, kLengthBytes);
  return encoded + text;
}

uint64_t header_bytes(std::string_view first_bytes, uint64_t file_bytes) {
  if (file_bytes == 0) refuse("it is empty");
  if (first_bytes.size() < kLengthBytes) refuse("it has {} bytes, which is too short", file_bytes);
  uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), kLengthBytes);
  if (length > kMostHeaderBytes || length < 2) {
    refuse("it does not begin with the length of a header, but with {}", base::quote(first_bytes));
  }
  if (length > file_bytes - kLengthBytes) {
    refuse("it ends within its header: it has {} bytes of {}", file_bytes, kLengthBytes + length);
  }
  return length;
}

}  // namespace lockstep::snapshot
