// Writes a snapshot atomically: the file is either complete or absent.
#pragma once

#include <filesystem>

#include "snapshot/document.h"
#include "snapshot/hidden_file.h"

namespace lockstep::snapshot {

// Blocks until the file and its name are on disk. Writes to a hidden file in the same directory and renames
// it at the end, which replaces an older file. The directory must exist. The tensors may have any strides and
// device, and must not change during the call.
//
// Throws UsageError for a document that the format cannot represent, SnapshotError if the system fails. The
// hidden file is then removed, and an older file is unchanged. Only if the sync of the directory fails, after
// the rename, the new file may have replaced it.
void write_file(const Document& document, const std::filesystem::path& path,
                const WriteProgress& progress = {});

}  // namespace lockstep::snapshot
