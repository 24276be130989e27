// The directory of a run's snapshots: "snapshot-00000007.safetensors", numbered in the order they were
// written.
//
// One writer at a time, which holds a lock; any number of readers, which hold none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "snapshot/directory_lock.h"

namespace lockstep::snapshot {

struct Numbered {
  int64_t sequence = 0;
  std::filesystem::path path;
};

class Directory {
 public:
  // Touches nothing yet.
  explicit Directory(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }

  // Everything that is named as a snapshot, oldest first; whether it is a file, and whole, is seen when it is
  // read. A directory that does not exist has none.
  std::vector<Numbered> list() const;

  // Makes the directory if need be, takes the lock, and removes what killed writers left. SnapshotError if
  // another writer holds the lock. The kernel releases it when this process and those it forked meanwhile are
  // gone, however they ended.
  void lock();

  // To be called before each snapshot is written. SnapshotError if the lock no longer keeps others away: the
  // directory is another one now, or another writer has taken it over. A lock file that was removed is made
  // again.
  void check_lock();

  // Where the next snapshot goes: one after the greatest number that is there.
  std::filesystem::path next() const;

  // Removes all but the newest `keep` files; none if it is 0. Needs the lock. To be called after a new one is
  // written: never before, for that may fail.
  void remove_old(int keep);

 private:
  void remove_leftovers() const;

  std::filesystem::path path_;
  std::unique_ptr<DirectoryLock> lock_;
};

}  // namespace lockstep::snapshot
