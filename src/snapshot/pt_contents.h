// Parses the pickle of a .pt file: which tensors it describes, and where their elements are. Does not create
// tensors, so it needs only the type names of LibTorch.
//
// Validates everything: the views returned lie within their storages, and their total size is limited in
// proportion to the file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep::snapshot {

// A tensor, which may have several names in the file.
struct PtView {
  std::string storage;  // the key of its storage: the entry "data/<key>"
  at::ScalarType dtype = at::ScalarType::Undefined;
  int64_t storage_elements = 0;
  int64_t offset = 0;  // in elements
  std::vector<int64_t> sizes, strides;

  auto operator<=>(const PtView&) const = default;
};

struct PtContents {
  std::vector<PtView> views;                          // without duplicates
  std::vector<std::pair<std::string, size_t>> names;  // unique, each with the index of its view
};

// The file is not a state dict. The message begins with "it" or "its": the file, which only the caller knows.
class PtError : public std::runtime_error {
 public:
  PtError(const std::string& message, std::string hint)
      : std::runtime_error(message), hint_(std::move(hint)) {}
  const std::string& hint() const { return hint_; }

 private:
  std::string hint_;
};

// Accepts a dict of tensors, or a dict in which exactly one value is such a dict. storage_bytes: returns the
// size of the storage with this key, or nothing if the file has none. file_bytes: the size of the whole file.
PtContents read_pt_contents(
    std::string pickle, uint64_t file_bytes,
    const std::function<std::optional<uint64_t>(const std::string& key)>& storage_bytes);

}  // namespace lockstep::snapshot
