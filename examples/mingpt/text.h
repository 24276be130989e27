// The training text, as tokens. A token is a byte, so any file can be used and no vocabulary is needed.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include <lockstep/lockstep.h>

namespace mingpt {

// Reads a file, or the files of a directory in the order of their names. Skips symbolic links, which would
// repeat text.
inline std::string read_text(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const auto& entry : fs::directory_iterator(path, error)) {
      if (!entry.is_symlink() && entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  } else {
    files = {path};
  }

  std::string text;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(stream), {});
    if (stream.bad() || !stream.is_open()) error = std::error_code(errno, std::generic_category());
    if (error) break;
  }
  if (error) {
    throw lockstep::UsageError("the text " + path.string() + " cannot be read: " + error.message() +
                               "\nhint: pass a file or a directory of files with --text");
  }
  return text;
}

// Sends rank 0's text to all ranks, so that the others do not need the file. Returns a one-dimensional tensor
// of bytes.
inline torch::Tensor share_text(const std::string& text, lockstep::ProcessGroup& group) {
  auto size = torch::tensor(static_cast<int64_t>(text.size()));
  group.broadcast(size);
  auto bytes = torch::empty({size.item<int64_t>()}, torch::kByte);
  if (group.rank() == 0) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  if (bytes.numel() > 0) group.broadcast(bytes);
  return bytes;
}

// Pieces of a text that are one token longer than the context: the model's input is all but the last token,
// its target is all but the first.
class Windows {
 public:
  // A window starts every `stride` tokens.
  Windows(torch::Tensor tokens, int64_t context, int64_t stride)
      : windows_(tokens.numel() > context ? tokens.unfold(0, context + 1, stride)  // a view
                                          : tokens.new_empty({0, context + 1})) {}

  size_t size() const { return static_cast<size_t>(windows_.size(0)); }

  // [count, context + 1] of int64.
  torch::Tensor at(const size_t* indices, size_t count) const {
    const std::vector<int64_t> rows(indices, indices + count);
    return windows_.index_select(0, torch::tensor(rows, torch::kLong)).to(torch::kLong);
  }

 private:
  torch::Tensor windows_;
};

}  // namespace mingpt
