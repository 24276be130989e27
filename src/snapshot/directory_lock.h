// Keeps a directory of snapshots to one writer at a time.
//
// Both the directory itself and the file ".lock" in it are locked. The file says who holds it, and works on
// file servers that cannot lock a directory; the directory stays locked when somebody removes the file.
#pragma once

#include <filesystem>

#include "base/fd.h"

namespace lockstep::snapshot {

class DirectoryLock {
 public:
  // The directory must exist. SnapshotError if another process holds the lock: it says which.
  explicit DirectoryLock(std::filesystem::path directory);

  // False on a file system without locks: the user was warned.
  bool excludes_others() const { return excludes_others_; }

  // Locks are held on what was opened, which need not be what stands under the path today. SnapshotError if
  // the directory is gone or another one, or if another process holds its file by now. Makes a removed file
  // anew.
  void check();

 private:
  // False if another process holds it.
  bool lock_file();

  std::filesystem::path directory_path_;
  base::Fd directory_, file_;
  bool excludes_others_ = true;
};

}  // namespace lockstep::snapshot
