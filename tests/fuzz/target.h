// What a fuzz target is: one function that takes any bytes. Whatever they are, it returns, and a broken
// promise ends the process: must().
//
// `make fuzz` links the targets with clang's libFuzzer, which makes up the bytes. `make test` links them with
// replay.cc, which reads the files of corpus/, so that what was found once stays mended.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count);

namespace lockstep::fuzz {

inline void must(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", promise);
  std::abort();
}

// A file in memory, for readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    must(fd_ >= 0, "there is a file in memory");
    must(::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "it can be written");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace lockstep::fuzz
