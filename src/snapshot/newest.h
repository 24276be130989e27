// Finds the newest snapshot in a directory, even while a writer adds and removes snapshots.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "snapshot/directory.h"
#include "snapshot/document.h"

namespace lockstep::snapshot {

// Reads the newest intact snapshot; skips damaged ones with a warning. Returns nothing if there are no
// snapshots. Throws SnapshotError if all are damaged, or if one cannot be read for another reason: it may be
// intact, and skipping it would lose its state.
std::optional<Document> read_newest(const Directory& directory);

// Calls `use` with the path of the newest snapshot. If `use` throws GoneError because the writer has removed
// the file, calls it again with the new newest one. Returns false if there are no snapshots.
bool with_newest(const Directory& directory, const std::function<void(const std::filesystem::path&)>& use);

}  // namespace lockstep::snapshot
