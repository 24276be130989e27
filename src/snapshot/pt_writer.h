// Writes a state dict as Python's torch.save(module.state_dict(), path) does.
//
// The file is a zip of uncompressed entries: data.pkl, the pickled dict, which refers to storages by number,
// and data/0, data/1, …, their bytes. The pickle uses only what torch.load(weights_only=True) takes.
#pragma once

#include <filesystem>

#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

// Tensors that share memory are written once and share it in Python too. The file appears under its name only
// when it is whole and on the disk. Throws SnapshotError when it cannot be written, UsageError for tensors
// that a state dict cannot hold.
void write_pt(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace lockstep::snapshot
