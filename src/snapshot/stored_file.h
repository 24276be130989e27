// Reads a snapshot from disk without creating tensors: first the header, which is parsed and validated, then
// the data, in order.
//
// Accepts any input: the result is a readable file, or a SnapshotError that names the file and the problem.
// Only DamagedError means that the file itself is bad; other errors may be temporary.
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

// Which files to accept. Files of other programs have no checksum, and their `about` is an empty object.
enum class Origin { Lockstep, Any };

// The file is not a snapshot, or its bytes have changed since it was written.
class DamagedError : public SnapshotError {
 public:
  using SnapshotError::SnapshotError;
};

// The file is intact, but needs a newer lockstep.
class NewerFormatError : public SnapshotError {
 public:
  using SnapshotError::SnapshotError;
};

// The file does not exist, or no longer does: a writer removes old snapshots.
class GoneError : public SnapshotError {
 public:
  using SnapshotError::SnapshotError;
};

class StoredFile {
 public:
  StoredFile(const std::filesystem::path& path, Origin origin);

  uint64_t bytes() const { return bytes_; }  // of the whole file
  const Header& header() const { return header_; }
  const nlohmann::json& about() const { return about_; }
  bool foreign() const { return foreign_; }  // written by another program

  // Reads the next bytes of the data.
  void read(char* to, uint64_t count);
  // Reads the rest, and throws DamagedError unless the checksum of all bytes is right.
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
  uint64_t bytes_ = 0, left_ = 0;  // of the whole file; not read yet
  Header header_;
  nlohmann::json about_ = nlohmann::json::object();
  bool foreign_ = false;
  Checksum checksum_;   // of the bytes read so far
  std::string digits_;  // the expected checksum of the whole file; empty if there is none
};

struct Summary {
  nlohmann::json about;
  uint64_t bytes = 0;  // of the whole file
  std::vector<TensorInfo> tensors;
  bool foreign = false;  // written by another program
};

// Reads only the header. Checks the length of the file, but not its checksum.
Summary read_summary(const std::filesystem::path& path, Origin origin = Origin::Lockstep);

// Reads and checks the whole file.
void verify_file(const std::filesystem::path& path, Origin origin = Origin::Lockstep);

}  // namespace lockstep::snapshot
