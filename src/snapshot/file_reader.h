// Reads snapshots. Trusts nothing in them: whatever the bytes are, the outcome is a document or a
// SnapshotError that names the file and says what is wrong with it, and tensors never take more memory than
// the file has bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <lockstep/error.h>

#include "snapshot/document.h"
#include "snapshot/safetensors.h"

namespace lockstep::snapshot {

// Which files are taken. Those of other programs have no checksum, and their `about` is an empty object.
enum class Origin { Lockstep, Any };

// The file may be whole, but only a newer lockstep can tell.
class NewerFormatError : public SnapshotError {
 public:
  using SnapshotError::SnapshotError;
};

struct Summary {
  nlohmann::json about;
  uint64_t bytes = 0;  // the whole file
  std::vector<TensorInfo> tensors;
  bool foreign = false;  // not of lockstep
};

// Reads the header only. Checks that the file is as long as it says, but not the checksum.
Summary read_summary(const std::filesystem::path& path, Origin origin = Origin::Lockstep);

// Whole and verified, in one pass over the bytes. The tensors are in the order they were written in.
Document read_file(const std::filesystem::path& path, Origin origin = Origin::Lockstep);

// The same check without keeping the tensors.
void verify_file(const std::filesystem::path& path, Origin origin = Origin::Lockstep);

}  // namespace lockstep::snapshot
