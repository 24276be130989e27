#include "shm/pages.h"

#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::shm {

namespace {

// MFD_NOEXEC_SEAL. Required by systems that forbid executable memfds; unknown to kernels before Linux 6.3.
constexpr unsigned kNoExecSeal = 8;

// MADV_POPULATE_WRITE (Linux 5.14) and MADV_COLLAPSE (Linux 6.1); older headers do not define them.
constexpr int kPopulateWrite = 23;
constexpr int kCollapse = 25;

}  // namespace

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t whole_pages(size_t bytes) {
  if (bytes > SIZE_MAX - page_bytes()) throw_system_error(fmt::format("cannot share {} bytes", bytes), EFBIG);
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

void throw_system_error(const std::string& what, int error, const std::string& hint) {
  throw SystemError(base::compose({.what = what, .evidence = base::errno_text(error), .hint = hint}));
}

// Beyond RLIMIT_FSIZE, ftruncate() sends SIGXFSZ, which would end the process.
void check_file_limit(uint64_t bytes) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) {
    return;
  }
  throw_system_error(
      fmt::format("cannot grow shared memory to {} bytes", bytes), EFBIG,
      fmt::format("the limit is {} bytes: raise it with `ulimit -f unlimited`", limit.rlim_cur));
}

base::Fd make_memfd(const std::string& name) {
  const auto short_name = name.substr(0, 200);  // the kernel takes 249
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  base::Fd memfd(::memfd_create(short_name.c_str(), kFlags | kNoExecSeal));
  if (!memfd && errno == EINVAL) memfd = base::Fd(::memfd_create(short_name.c_str(), kFlags));
  if (!memfd) {
    const int error = errno;
    throw_system_error("cannot create shared memory", error,
                       error == EMFILE ? "raise the limit of open files with `ulimit -n`" : "");
  }
  return memfd;
}

void punch_hole(const base::Fd& file, uint64_t offset, uint64_t bytes) {
  [[maybe_unused]] const int ignored = ::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                                   static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

void copy_pages(std::byte* data, size_t bytes) {
  if (::madvise(data, bytes, kPopulateWrite) == 0) return;
  for (size_t at = 0; at < bytes; at += page_bytes()) {
    // Writes back the current value. Compilers would remove an addition of zero.
    std::atomic_ref word(*reinterpret_cast<unsigned char*>(data + at));
    auto seen = word.load();
    while (!word.compare_exchange_weak(seen, seen)) {
    }
  }
}

bool populate_pages(std::byte* data, size_t bytes) {
  return ::madvise(data, bytes, kPopulateWrite) == 0 || errno == EINVAL;  // EINVAL: an older kernel
}

bool replace_pages(std::byte* data, size_t bytes) {
  // Made elsewhere and then moved, because a mapping that fails at this address might leave a hole there.
  void* const made =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return false;
  if (::mremap(made, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, data) != MAP_FAILED) return true;
  ::munmap(made, bytes);
  return false;
}

void collapse_pages(std::byte* data, size_t bytes) {
  // MADV_COLLAPSE needs at least one small page in each huge page.
  for (size_t begun = 0; begun < bytes; begun += kHugePageBytes) {
    if (::madvise(data + begun, page_bytes(), kPopulateWrite) != 0) return;
  }
  [[maybe_unused]] const int ignored = ::madvise(data, bytes, kCollapse);
}

}  // namespace lockstep::shm
