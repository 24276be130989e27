// Reads uncompressed entries of a zip file, such as torch.save writes.
//
// Validates everything: entries lie within the file, their total size does not exceed it, and their bytes
// match the checksums. Throws SnapshotError that names the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/fd.h"

namespace lockstep::snapshot {

class ZipReader {
 public:
  explicit ZipReader(const std::filesystem::path& path);

  bool contains(const std::string& name) const { return entries_.contains(name); }
  // Throws if there is no such entry, or if it is compressed.
  uint64_t size(const std::string& name) const { return entry(name).size; }
  // Reads the size(name) bytes of the entry.
  void read(const std::string& name, void* to) const;
  std::string read_text(const std::string& name) const;
  uint64_t file_size() const { return file_size_; }
  // The name of the first entry in the directory; empty if there are none.
  const std::string& first_name() const { return first_name_; }

 private:
  struct Entry {
    uint64_t header = 0;  // the offset of its local header
    uint64_t size = 0;
    uint32_t checksum = 0;
    bool stored = true;  // neither compressed nor encrypted
  };
  struct CentralDirectory {
    uint64_t begin = 0, size = 0;
  };

  const Entry& entry(const std::string& name) const;
  void read_at(uint64_t offset, void* to, uint64_t count) const;
  std::string text_at(uint64_t offset, uint64_t count) const;
  CentralDirectory find_directory() const;
  void read_directory(const CentralDirectory& directory);
  [[noreturn]] void fail(const std::string& evidence, const std::string& hint) const;
  [[noreturn]] void fail_damaged(const std::string& evidence) const;

  std::filesystem::path path_;
  base::Fd fd_;
  uint64_t file_size_ = 0;
  uint64_t directory_begin_ = 0;
  std::map<std::string, Entry> entries_;
  std::string first_name_;
};

}  // namespace lockstep::snapshot
