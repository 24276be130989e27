// Files, processes and documents for the tests of snapshot files.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <iterator>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "snapshot/checksum.h"
#include "snapshot/document.h"
#include "snapshot/format.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {

inline std::string bytes_in(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void put_bytes(const std::filesystem::path& path, const std::string& bytes) {
  // Creates a new file, because overwriting one waits for the disk on some file systems.
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

// The bytes of a file with another format version and a matching checksum.
inline std::string with_version(std::string file, const std::string& version) {
  const std::string mine = R"("format_version":"1")";
  const auto at = file.find(mine);
  if (at == std::string::npos) throw std::runtime_error("no version in this file");
  file.replace(at, mine.size(), R"("format_version":")" + version + '"');
  file.replace(snapshot::kChecksumOffset, snapshot::Checksum::kDigits, snapshot::Checksum::kDigits, '0');
  snapshot::Checksum checksum;
  checksum.add(file.data(), file.size());
  return file.replace(snapshot::kChecksumOffset, snapshot::Checksum::kDigits, checksum.digits());
}

inline size_t files_in(const std::filesystem::path& path) {
  const std::filesystem::directory_iterator files(path);
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

inline snapshot::Document small_document(int64_t mark) {
  return {{{"weight", at::arange(mark, mark + 1000, at::kFloat).view({20, 50})},
           {"flags", at::arange(7).gt(3)},
           {"steps", at::scalar_tensor(mark, at::kLong)}},
          {{"mark", mark}}};
}

inline void expect_same(const snapshot::Document& a, const snapshot::Document& b) {
  EXPECT_EQ(a.about, b.about);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].name, b.tensors[i].name);
    EXPECT_EQ(a.tensors[i].tensor.scalar_type(), b.tensors[i].tensor.scalar_type()) << a.tensors[i].name;
    EXPECT_EQ(a.tensors[i].tensor.sizes(), b.tensors[i].tensor.sizes()) << a.tensors[i].name;
    EXPECT_TRUE(at::equal(a.tensors[i].tensor, b.tensors[i].tensor)) << a.tensors[i].name;
  }
}

// Runs the body in a forked process and returns its wait status. The process exits with 0, with 1 after a
// failed assertion, or with 2 after an exception, which it prints.
inline int in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    ::alarm(60);
    ::prctl(PR_SET_DUMPABLE, 0);
    int status = 0;
    try {
      body();
      if (::testing::Test::HasFailure()) status = 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      status = 2;
    }
    std::fflush(nullptr);
    ::_exit(status);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

inline bool killed_by(int status, int signal) { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }
inline bool exited_with(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

}  // namespace lockstep::testing
