// Ensures that a directory of snapshots has at most one writer.
//
// Locks both the directory itself and the file ".lock" in it. The file names the owner, and works on file
// servers that cannot lock a directory. The lock on the directory survives the removal of the file.
#pragma once

#include <filesystem>

#include "base/fd.h"

namespace lockstep::snapshot {

class DirectoryLock {
 public:
  // The directory must exist. Throws SnapshotError that names the owner if another process holds the lock.
  explicit DirectoryLock(std::filesystem::path directory);

  // False on a file system without locks, about which the user was warned.
  bool excludes_others() const { return excludes_others_; }

  // Checks that the path still leads to the directory and the file that were locked. Throws SnapshotError if
  // the directory is gone or replaced, or if another process holds the lock file by now. Recreates a removed
  // lock file.
  void check();

 private:
  // False if another process holds the lock.
  bool lock_file();

  std::filesystem::path directory_path_;
  base::Fd directory_, file_;
  bool excludes_others_ = true;
};

}  // namespace lockstep::snapshot
