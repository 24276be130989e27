// The interface of a fuzz target: one function that accepts any bytes. It must return for all of them; a
// violated condition ends the process: must().
//
// `make fuzz` links the targets with clang's libFuzzer, which generates the bytes. `make test` links them
// with replay.cc, which reads the files in corpus/, so that earlier findings are tested again.
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
  std::fprintf(stderr, "violated: %s\n", promise);
  std::abort();
}

// A file in memory, for functions that read a path.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    must(fd_ >= 0, "a file in memory can be created");
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
