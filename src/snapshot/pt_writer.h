// Writes a state dict as Python's torch.save(module.state_dict(), path) does.
//
// The file is a zip of uncompressed entries: data.pkl is the pickled dict, which refers to storages by
// number; data/0, data/1, … are the bytes of the storages. The pickle uses only what
// torch.load(weights_only=True) accepts.
#pragma once

#include <filesystem>

#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

// Memory that tensors share is written once, and the tensors share it again in Python. The file gets its name
// only when it is complete and on disk. Throws SnapshotError if it cannot be written, UsageError for tensors
// that a state dict cannot represent.
void write_pt(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace lockstep::snapshot
