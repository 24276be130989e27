// A file that gets its name only when it is complete. Until then it is a hidden file in the same directory,
// ".<name>.<digits>.partial". The destructor removes it if it did not get its name; only a killed process
// leaves one behind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace lockstep::snapshot {

// Called after each large write. If it throws, no file remains.
using WriteProgress = std::function<void(uint64_t bytes_done, uint64_t bytes_all)>;

// Throws SnapshotError if the system fails. `kind` and the path name the file in the message.
class HiddenFile {
 public:
  // The directory must exist. Reserves `bytes_all` on the disk if it is not 0.
  HiddenFile(const std::filesystem::path& path, std::string kind, uint64_t bytes_all = 0,
             WriteProgress progress = {});
  ~HiddenFile();
  HiddenFile(const HiddenFile&) = delete;
  HiddenFile& operator=(const HiddenFile&) = delete;

  void append(const char* bytes, size_t count);
  void overwrite(uint64_t offset, std::string_view bytes);
  // Renames the file, replacing an older one. Blocks until first the bytes and then the name are on disk.
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

// Whether `file` is the hidden file of a killed writer of `name`.
bool is_leftover_of(std::string_view file, std::string_view name);

}  // namespace lockstep::snapshot
