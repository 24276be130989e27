// Reads a snapshot including its tensors, which never take more memory than the file has bytes.
#pragma once

#include <filesystem>

#include "snapshot/document.h"
#include "snapshot/stored_file.h"

namespace lockstep::snapshot {

// Reads and verifies the file in one pass. The tensors are in the order of the header. Throws the errors of
// StoredFile, and SnapshotError if there is not enough memory for a tensor.
Document read_file(const std::filesystem::path& path, Origin origin = Origin::Lockstep);

}  // namespace lockstep::snapshot
