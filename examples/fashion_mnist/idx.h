// Reads files of bytes in MNIST's format, IDX, gzipped or not.
//
// A file consists of a magic number (0, 0, type, number of dimensions), the dimensions as big-endian 32-bit
// integers, and the elements. Any other content is rejected, with the file's name and the reason.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>
#include <zlib.h>

#include <torch/types.h>

#include <lockstep/error.h>

namespace fashion_mnist {

class IdxFile {
 public:
  // Opens `path`, or `path`.gz if `path` does not exist.
  explicit IdxFile(std::filesystem::path path) : path_(std::move(path)) {
    if (!std::filesystem::exists(path_)) path_ += ".gz";
    errno = 0;
    file_.reset(gzopen(path_.c_str(), "rb"));  // also reads uncompressed files
    if (!file_) fail(errno != 0 ? std::strerror(errno) : "out of memory");
  }

  // Reads the whole file, as bytes. Throws UsageError unless it has this number of dimensions.
  torch::Tensor read(int dimensions) {
    std::array<uint8_t, 4> magic{};
    read_into(magic.data(), magic.size());
    if (magic[0] != 0 || magic[1] != 0) fail("it does not start like an IDX file");
    if (magic[2] != kBytes) fail("its elements are not bytes");
    if (magic[3] != dimensions) {
      fail("it has " + std::to_string(magic[3]) + " dimensions instead of " + std::to_string(dimensions));
    }
    std::vector<int64_t> sizes;
    int64_t total = 1;
    for (int i = 0; i < dimensions; ++i) {
      std::array<uint8_t, 4> size{};
      read_into(size.data(), size.size());
      sizes.push_back(int64_t{size[0]} << 24 | size[1] << 16 | size[2] << 8 | size[3]);
      if (sizes.back() > kMostBytes / std::max<int64_t>(total, 1)) fail("it claims to hold more than 2 GiB");
      total *= sizes.back();
    }
    auto tensor = torch::empty(sizes, torch::kUInt8);
    read_into(tensor.data_ptr<uint8_t>(), static_cast<size_t>(total));
    uint8_t beyond = 0;
    if (gzread(file_.get(), &beyond, 1) != 0) fail("it continues after its last element");
    return tensor;
  }

 private:
  static constexpr uint8_t kBytes = 8;
  static constexpr int64_t kMostBytes = int64_t{2} << 30;  // so a damaged header cannot exhaust the memory

  struct Closer {
    void operator()(gzFile file) const { gzclose(file); }
  };

  void read_into(uint8_t* to, size_t bytes) {
    if (bytes == 0) return;
    const int got = gzread(file_.get(), to, static_cast<unsigned>(bytes));
    int error = Z_OK;
    const char* text = gzerror(file_.get(), &error);
    if (error == Z_ERRNO) fail(std::strerror(errno));
    if (error != Z_OK && error != Z_BUF_ERROR) fail(text);
    if (got < 0 || static_cast<size_t>(got) != bytes) fail("it ends too early");
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw lockstep::UsageError(
        "cannot read " + path_.string() + ": " + why +
        "\nhint: --data needs a folder with MNIST's four files, such as "
        "train-images-idx3-ubyte.gz; on Debian, apt-get install dataset-fashion-mnist");
  }

  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, Closer> file_;
};

}  // namespace fashion_mnist
