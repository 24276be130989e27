// The directory with the snapshots of a run: "snapshot-00000007.safetensors", numbered in the order of
// writing.
//
// It has at most one writer, which holds a lock, and any number of readers, which do not.
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
  // Does not access the file system.
  explicit Directory(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }

  // All files named like a snapshot, oldest first. Does not open them, so they need not be regular files or
  // intact. Empty for a directory that does not exist.
  std::vector<Numbered> list() const;

  // Creates the directory if necessary, locks it, and removes the files of killed writers. Throws
  // SnapshotError if another writer holds the lock. The kernel releases the lock when this process and all
  // children that it has forked meanwhile have ended, whatever the reason.
  void lock();

  // Call it before writing each snapshot. Throws SnapshotError if the lock no longer excludes other writers:
  // the directory was replaced, or another writer has locked it. Restores a lock file that was removed.
  void check_lock();

  // The path for the next snapshot: one above the highest number in the directory.
  std::filesystem::path next() const;

  // Removes all files but the newest `keep`; 0 removes none. Requires the lock. Call it only after the new
  // snapshot is written, because writing may fail.
  void remove_old(int keep);

 private:
  void remove_leftovers() const;

  std::filesystem::path path_;
  std::unique_ptr<DirectoryLock> lock_;
};

}  // namespace lockstep::snapshot
