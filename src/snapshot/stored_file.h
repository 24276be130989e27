// A snapshot on the disk: its header, which is read and makes sense, and then its data, from the beginning to
// the end. Nothing here needs a tensor.
//
// Trusts nothing: whatever the bytes are, the outcome is a file that can be read or a SnapshotError that
// names it and says what is wrong. Only DamagedError says that the file is no good; any other may be
// different the next time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <lockstep/error.h>

#include "base/fd.h"
#include "snapshot/checksum.h"
#include "snapshot/safetensors.h"

namespace lockstep::snapshot {

// Which files are taken. Those of other programs have no checksum, and their `about` is an empty object.
enum class Origin { Lockstep, Any };

// The bytes are not those of a snapshot, or not those that were written.
class DamagedError : public SnapshotError {
 public:
  using SnapshotError::SnapshotError;
};

// The file is whole, but only a newer lockstep can read it.
class NewerFormatError : public SnapshotError {
 public:
  using SnapshotError::SnapshotError;
};

// There is no such file, or none any more: a writer removes old ones.
class GoneError : public SnapshotError {
 public:
  using SnapshotError::SnapshotError;
};

class StoredFile {
 public:
  StoredFile(const std::filesystem::path& path, Origin origin);

  uint64_t bytes() const { return bytes_; }  // the whole file
  const Header& header() const { return header_; }
  const nlohmann::json& about() const { return about_; }
  bool foreign() const { return foreign_; }  // not of lockstep

  // The next bytes of the data.
  void read(char* to, uint64_t count);
  // Reads what is left, and throws unless the checksum of all bytes is right.
  void finish();

  [[noreturn]] void damaged(const std::string& evidence) const;
  [[noreturn]] void refuse(const std::string& evidence, const std::string& hint) const;

 private:
  void open();
  void read_header(Origin origin);
  void take_checksum(std::string text, const std::string& length);
  template <class Kind>
  [[noreturn]] void throw_as(const std::string& evidence, const std::string& hint) const;
  [[noreturn]] void fail_to(const char* verb, int error) const;

  std::filesystem::path path_;
  base::Fd fd_;
  uint64_t bytes_ = 0, left_ = 0;  // left_: of the whole file
  Header header_;
  nlohmann::json about_ = nlohmann::json::object();
  bool foreign_ = false;
  Checksum checksum_;   // of what has been read
  std::string digits_;  // what it must be at the end; empty if nothing says so
};

struct Summary {
  nlohmann::json about;
  uint64_t bytes = 0;  // the whole file
  std::vector<TensorInfo> tensors;
  bool foreign = false;  // not of lockstep
};

// Reads the header only. Checks that the file is as long as it says, but not the checksum.
Summary read_summary(const std::filesystem::path& path, Origin origin = Origin::Lockstep);

// Reads everything and keeps nothing.
void verify_file(const std::filesystem::path& path, Origin origin = Origin::Lockstep);

}  // namespace lockstep::snapshot
