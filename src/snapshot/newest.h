// The newest snapshot of a directory, also while a writer adds new ones there and removes old ones.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "snapshot/directory.h"
#include "snapshot/document.h"

namespace lockstep::snapshot {

// The newest that is whole: damaged ones are passed over, with a warning. Nothing if there is none at all;
// SnapshotError if all are damaged. It is also thrown when one cannot be read for another reason: that one
// may be whole, and to pass over it would be to lose what it holds.
std::optional<Document> read_newest(const Directory& directory);

// Calls `use` with the path of the newest, and again with that of then if the writer has removed it
// meanwhile. False if there is none.
bool with_newest(const Directory& directory, const std::function<void(const std::filesystem::path&)>& use);

}  // namespace lockstep::snapshot
