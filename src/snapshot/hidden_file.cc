#include "snapshot/hidden_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <random>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::snapshot {

namespace {

constexpr std::string_view kLeftoverEnd = ".partial";

std::string hint_for(int error) {
  switch (error) {
    case ENOSPC:
      return "free space on this file system, keep fewer snapshots, or use a directory on another one";
    case EDQUOT:
      return "the user's quota is used up: remove files, or use a directory on another file system";
    case EFBIG:
      return "the file system or `ulimit -f` does not allow a file of this size";
    case EACCES:
    case EPERM:
    case EROFS:
      return "use a directory that this user may write to";
    case ENOENT:
    case ENOTDIR:
      return "make the directory first";
    case EISDIR:
      return "a directory has this name: use another";
    case ENAMETOOLONG:
      return "use a shorter name: that of the hidden file has 26 characters more";
    default:
      return "check the kernel's log (dmesg) for errors of the disk or the file server";
  }
}

}  // namespace

HiddenFile::HiddenFile(const std::filesystem::path& path, std::string kind, uint64_t bytes_all,
                       WriteProgress progress)
    : path_(path),
      kind_(std::move(kind)),
      name_(path.filename()),
      bytes_all_(bytes_all),
      progress_(std::move(progress)) {
  const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  directory_.reset(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_) fail("open the directory of", errno);
  struct stat there = {};
  const bool is_directory =
      name_.empty() || (::fstatat(directory_.get(), name_.c_str(), &there, 0) == 0 && S_ISDIR(there.st_mode));
  if (is_directory) fail("replace", EISDIR);
  create();
  reserve();
}

HiddenFile::~HiddenFile() { remove(); }

void HiddenFile::append(const char* bytes, size_t count) {
  while (count > 0) {
    const auto written = ::write(file_.get(), bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", errno);
    bytes += written;
    count -= static_cast<size_t>(written);
    bytes_done_ += static_cast<uint64_t>(written);
  }
  if (progress_) progress_(bytes_done_, bytes_all_);
}

void HiddenFile::overwrite(uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto written = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", errno);
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void HiddenFile::take_name() {
  sync(file_, "write to the disk");
  if (::renameat(directory_.get(), hidden_name_.c_str(), directory_.get(), name_.c_str()) != 0) {
    fail("rename", errno);
  }
  hidden_name_.clear();
  sync(directory_, "write to the disk the directory of");
}

void HiddenFile::create() {
  std::random_device random;
  constexpr int kMostAttempts = 16;
  for (int attempt = 1;; ++attempt) {
    auto hidden_name = fmt::format(".{}.{:08x}{:08x}{}", name_, random(), random(), kLeftoverEnd);
    file_.reset(
        ::openat(directory_.get(), hidden_name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file_) {
      hidden_name_ = std::move(hidden_name);
      return;
    }
    if (errno != EEXIST || attempt == kMostAttempts) fail("create", errno);
  }
}

// Detects a full disk before the first write. File systems that cannot reserve space (NFS before 4.2, FUSE)
// report it during the writes. Not posix_fallocate, which would write the whole file there.
void HiddenFile::reserve() {
  if (bytes_all_ == 0) return;
  if (::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_all_)) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail("reserve the space for", errno);
}

void HiddenFile::sync(const base::Fd& fd, const char* doing) {
  int error = 0;
  do {
    error = ::fsync(fd.get()) == 0 ? 0 : errno;
  } while (error == EINTR);
  // Some file systems cannot sync directories.
  if (error != 0 && error != EINVAL) fail(doing, error);
}

void HiddenFile::remove() {
  file_.reset();
  if (!hidden_name_.empty()) ::unlinkat(directory_.get(), hidden_name_.c_str(), 0);
  hidden_name_.clear();
}

void HiddenFile::fail(const char* doing, int error) {
  remove();
  auto where = bytes_all_ == 0 ? fmt::format("{} bytes written", bytes_done_)
                               : fmt::format("{} of {} bytes written", bytes_done_, bytes_all_);
  struct statvfs system = {};
  if (directory_ && ::fstatvfs(directory_.get(), &system) == 0) {
    where += fmt::format(", {} bytes free without this file", uint64_t{system.f_bavail} * system.f_frsize);
  }
  throw SnapshotError(base::compose({.what = fmt::format("cannot {} {} {}", doing, kind_, path_.string()),
                                     .where = std::move(where),
                                     .evidence = base::errno_text(error),
                                     .hint = hint_for(error) + "; an older file of this name is unchanged"}));
}

bool is_leftover_of(std::string_view file, std::string_view name) {
  constexpr size_t kRandomDigits = 16;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (file.size() != 1 + name.size() + 1 + kRandomDigits + kLeftoverEnd.size()) return false;
  const auto digits = file.substr(1 + name.size() + 1, kRandomDigits);
  return file.front() == '.' && file.substr(1, name.size()) == name && file[1 + name.size()] == '.' &&
         file.ends_with(kLeftoverEnd) && std::all_of(digits.begin(), digits.end(), is_digit);
}

}  // namespace lockstep::snapshot
