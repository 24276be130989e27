// Writes a snapshot so that it is either whole under its name or not there.
#pragma once

#include <filesystem>

#include "snapshot/document.h"
#include "snapshot/hidden_file.h"

namespace lockstep::snapshot {

// Blocks until the file and its name are on the disk. The bytes go to a hidden file in the same directory,
// which takes the name at the end, replacing an older file. The directory must exist. The tensors may be
// strided and on any device, and must not change meanwhile.
//
// UsageError for a document that the format cannot hold; SnapshotError when the system refuses. Nothing is
// left behind then, and what stood under the name before stands there still, unless only the very last step
// failed: making sure of the name.
void write_file(const Document& document, const std::filesystem::path& path,
                const WriteProgress& progress = {});

}  // namespace lockstep::snapshot
