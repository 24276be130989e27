// Reads a snapshot with its tensors. They never take more memory than the file has bytes.
#pragma once

#include <filesystem>

#include "snapshot/document.h"
#include "snapshot/stored_file.h"

namespace lockstep::snapshot {

// Whole and verified, in one pass over the bytes. The tensors are in the order they were written in. Throws
// as StoredFile does, and SnapshotError when there is no memory for a tensor.
Document read_file(const std::filesystem::path& path, Origin origin = Origin::Lockstep);

}  // namespace lockstep::snapshot
