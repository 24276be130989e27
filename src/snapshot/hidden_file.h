// A file that takes its name only when it is whole. Until then it is hidden beside it, as
// ".<name>.<digits>.partial", and it is removed if it never gets there; only a killed process leaves one
// behind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace lockstep::snapshot {

// Called after each large write. What it throws ends the writing and leaves no file.
using WriteProgress = std::function<void(uint64_t bytes_done, uint64_t bytes_all)>;

// Throws SnapshotError when the system refuses, with `kind` and the path for its name.
class HiddenFile {
 public:
  // The directory must exist. `bytes_all`, when it is known, is reserved on the disk at once.
  HiddenFile(const std::filesystem::path& path, std::string kind, uint64_t bytes_all = 0,
             WriteProgress progress = {});
  ~HiddenFile();
  HiddenFile(const HiddenFile&) = delete;
  HiddenFile& operator=(const HiddenFile&) = delete;

  void append(const char* bytes, size_t count);
  void overwrite(uint64_t offset, std::string_view bytes);
  // Replaces an older file of this name. The bytes reach the disk before the name does, and the name before
  // this returns.
  void take_name();

 private:
  void create();
  void reserve();
  void sync(const base::Fd& fd, const char* doing);
  void remove();
  [[noreturn]] void fail(const char* doing, int error);

  std::filesystem::path path_;
  std::string kind_, name_, hidden_name_;
  uint64_t bytes_all_, bytes_done_ = 0;
  WriteProgress progress_;
  base::Fd directory_, file_;
};

// Whether a file in a directory is what a killed writer of `name` would leave.
bool is_leftover_of(std::string_view file, std::string_view name);

}  // namespace lockstep::snapshot
