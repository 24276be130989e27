#include "snapshot/directory_lock.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/host.h"
#include "base/log.h"
#include "base/printable.h"

namespace lockstep::snapshot {

namespace {

constexpr const char* kLockName = ".lock";

// 0, or the error: EWOULDBLOCK if another process holds the lock.
int try_lock(const base::Fd& fd) {
  int locked = 0;
  do {
    locked = ::flock(fd.get(), LOCK_EX | LOCK_NB);
  } while (locked != 0 && errno == EINTR);
  return locked == 0 ? 0 : errno;
}

// 0 if the path leads to the open file, EEXIST if it leads to another one; otherwise the error of stat.
int difference(const base::Fd& open, const std::filesystem::path& path) {
  struct stat ours = {}, theirs = {};
  if (::fstat(open.get(), &ours) != 0 || ::stat(path.c_str(), &theirs) != 0) return errno;
  return ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino ? 0 : EEXIST;
}

void describe_holder(const base::Fd& file) {
  const auto text =
      fmt::format("host {}, pid {}, since {:%Y-%m-%dT%H:%M:%SZ}\n", base::host_name(), ::getpid(),
                  fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  // This may fail on a full disk. The lock is held nevertheless.
  if (::ftruncate(file.get(), 0) != 0 || ::pwrite(file.get(), text.data(), text.size(), 0) < 0) {
    base::log_debug("cannot write the owner to the snapshots' lock file: {}", base::errno_text(errno));
  }
}

std::string holder_in(const std::filesystem::path& lock_file) {
  const base::Fd file(::open(lock_file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  char text[512];
  const auto got = file ? ::pread(file.get(), text, sizeof text, 0) : 0;
  const std::string_view all(text, got > 0 ? static_cast<size_t>(got) : 0);
  const auto line = all.substr(0, all.find('\n'));
  return line.empty() ? "an unknown process" : base::quote(line);
}

}  // namespace

DirectoryLock::DirectoryLock(std::filesystem::path directory) : directory_path_(std::move(directory)) {
  directory_.reset(::open(directory_path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_) {
    throw SnapshotError(
        base::compose({.what = fmt::format("cannot open the snapshot directory {}", directory_path_.string()),
                       .evidence = base::errno_text(errno),
                       .hint = "use a directory that this user may read and write"}));
  }
  // Not every file server can lock a directory. The file is locked in any case.
  if (try_lock(directory_) != EWOULDBLOCK && lock_file()) return;
  throw SnapshotError(
      base::compose({.what = fmt::format("another process writes snapshots to {}", directory_path_.string()),
                     .evidence = holder_in(directory_path_ / kLockName),
                     .hint = "use another directory, or wait until that process has ended; to read only, "
                             "open it with SnapshotOptions::read_only"}));
}

bool DirectoryLock::lock_file() {
  const auto path = directory_path_ / kLockName;
  constexpr int kMostAttempts = 16;
  for (int attempt = 1;; ++attempt) {
    base::Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (!file) {
      throw SnapshotError(base::compose(
          {.what = fmt::format("cannot write to the snapshot directory {}", directory_path_.string()),
           .evidence = base::errno_text(errno),
           .hint = "use a directory that this user may write to"}));
    }
    const int error = try_lock(file);
    if (error == EWOULDBLOCK) return false;
    // The file may have been removed after it was opened. A lock on an unlinked file excludes nobody.
    if (difference(file, path) != 0 && attempt < kMostAttempts) continue;
    excludes_others_ = error == 0;
    if (excludes_others_) {
      describe_holder(file);
    } else {
      base::log_warn(
          "the file system of {} does not support locks ({}): make sure that only one job writes snapshots "
          "there",
          directory_path_.string(), base::errno_text(error));
    }
    file_ = std::move(file);
    return true;
  }
}

void DirectoryLock::check() {
  if (const int error = difference(directory_, directory_path_); error != 0) {
    throw SnapshotError(base::compose(
        {.what = fmt::format("the snapshot directory {} is not the one that this job locked when it started",
                             directory_path_.string()),
         .where = "rank 0",
         .evidence =
             error == EEXIST ? "it was recreated, or replaced by another one" : base::errno_text(error),
         .hint = "restore the directory, or start the job again"}));
  }
  const auto path = directory_path_ / kLockName;
  if (difference(file_, path) == 0) return;
  if (!lock_file()) {
    throw SnapshotError(
        base::compose({.what = fmt::format("another job has taken over the snapshot directory {}",
                                           directory_path_.string()),
                       .where = "rank 0",
                       .evidence = fmt::format("{} was removed while this job ran, and is now locked by {}",
                                               path.string(), holder_in(path)),
                       .hint = "stop one of the two jobs; do not remove the lock file of a running job"}));
  }
  base::log_warn("{} was removed while this job writes snapshots there; it is locked again", path.string());
}

}  // namespace lockstep::snapshot
