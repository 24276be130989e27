// The reader of MNIST's format: what it takes, and that it refuses everything else by name.
#include "fashion_mnist/images.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>
#include <zlib.h>

namespace fashion_mnist {
namespace {

using ::testing::HasSubstr;

std::string idx(const std::vector<uint32_t>& sizes, const std::string& elements, char type = 8) {
  std::string out{'\0', '\0', type, static_cast<char>(sizes.size())};
  for (const uint32_t size : sizes) {
    for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(size >> shift & 255);
  }
  return out + elements;
}

class ImagesTest : public ::testing::Test {
 protected:
  ImagesTest() {
    std::string name = (std::filesystem::temp_directory_path() / "images_test.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for the test");
    folder_ = name;
  }
  ~ImagesTest() override { std::filesystem::remove_all(folder_); }

  void put(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  void put_gzipped(const std::string& name, const std::string& bytes) {
    const auto file = gzopen((folder_ / name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }
  // What reading the file as `dimensions` dimensions is refused with.
  std::string refusal(const std::string& name, int dimensions) {
    try {
      IdxFile(folder_ / name).read(dimensions);
    } catch (const lockstep::UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr((folder_ / name).string()));
      EXPECT_THAT(error.what(), HasSubstr("hint: "));
      return error.what();
    }
    ADD_FAILURE() << name << " was read";
    return "";
  }

  std::filesystem::path folder_;
};

TEST_F(ImagesTest, ReadsPlainAndGzippedFilesAlike) {
  put("a", idx({2, 3}, "abcdef"));
  put_gzipped("b.gz", idx({2, 3}, "abcdef"));
  for (const char* name : {"a", "b"}) {
    const auto read = IdxFile(folder_ / name).read(2);
    EXPECT_EQ(read.sizes(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(read[1][2].item<int>(), 'f');
  }
}

TEST_F(ImagesTest, RefusesWhatIsNoFileOfItsKindAndSaysWhy) {
  EXPECT_THAT(refusal("absent", 1), HasSubstr("No such file"));
  put("empty", "");
  EXPECT_THAT(refusal("empty", 1), HasSubstr("ends too early"));
  put("text", "hello, this is no image");
  EXPECT_THAT(refusal("text", 1), HasSubstr("does not start"));
  put("floats", idx({1}, "abcd", 13));
  EXPECT_THAT(refusal("floats", 1), HasSubstr("not bytes"));
  put("labels", idx({3}, "abc"));
  EXPECT_THAT(refusal("labels", 3), HasSubstr("1 dimensions instead of 3"));
  put("short", idx({4}, "abc"));
  EXPECT_THAT(refusal("short", 1), HasSubstr("ends too early"));
  put("long", idx({2}, "abc"));
  EXPECT_THAT(refusal("long", 1), HasSubstr("continues"));
  std::filesystem::create_directory(folder_ / "folder");
  refusal("folder", 1);
}

TEST_F(ImagesTest, AHeaderThatClaimsTooMuchTakesNoMemory) {
  put("huge", idx({0xffffffff, 0xffffffff, 0xffffffff}, ""));
  EXPECT_THAT(refusal("huge", 3), HasSubstr("2 GiB"));
  put("large", idx({0x80000001}, ""));
  EXPECT_THAT(refusal("large", 1), HasSubstr("2 GiB"));
}

TEST_F(ImagesTest, ADamagedGzipFileIsRefused) {
  put_gzipped("whole.gz", idx({4000}, std::string(4000, 'x')));
  std::string bytes(std::filesystem::file_size(folder_ / "whole.gz"), '\0');
  std::ifstream(folder_ / "whole.gz", std::ios::binary).read(bytes.data(), static_cast<long>(bytes.size()));
  put("cut.gz", bytes.substr(0, bytes.size() / 2));
  refusal("cut.gz", 1);
  bytes[bytes.size() - 6] ^= 1;  // in the checksum
  put("flipped.gz", bytes);
  refusal("flipped.gz", 1);
}

TEST_F(ImagesTest, BatchesHoldTheImagesAskedForInTheirOrder) {
  std::string pixels;
  for (const char value : {'\0', '\1', '\2'}) pixels += std::string(784, value);
  put("train-images-idx3-ubyte", idx({3, 28, 28}, pixels));
  put("train-labels-idx1-ubyte", idx({3}, {'\5', '\6', '\7'}));
  Images images(folder_, "train");
  const std::vector<size_t> wanted{2, 0};
  const auto batch = images.get_batch(wanted);
  EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{2, 1, 28, 28}));
  EXPECT_NEAR(batch.data[0][0][27][27].item<double>(), (2 / 255. - 0.286) / 0.353, 1e-6);
  EXPECT_EQ(batch.target[0].item<int>(), 7);
  EXPECT_EQ(batch.target[1].item<int>(), 5);
  EXPECT_EQ(Images(folder_, "train", 2).size(), 2U);
  EXPECT_EQ(Images(folder_, "train", 99).size(), 3U);
}

TEST_F(ImagesTest, LabelsThatDoNotFitTheImagesAreRefused) {
  put("train-images-idx3-ubyte", idx({1, 28, 28}, std::string(784, 'x')));
  put("train-labels-idx1-ubyte", idx({2}, {'\1', '\2'}));
  EXPECT_THROW(Images(folder_, "train"), lockstep::UsageError);
  put("train-labels-idx1-ubyte", idx({1}, {'\12'}));
  EXPECT_THROW(Images(folder_, "train"), lockstep::UsageError);
  put("train-images-idx3-ubyte", idx({1, 2, 2}, "abcd"));
  put("train-labels-idx1-ubyte", idx({1}, {'\1'}));
  EXPECT_THROW(Images(folder_, "train"), lockstep::UsageError);
}

}  // namespace
}  // namespace fashion_mnist
