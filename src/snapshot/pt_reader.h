// Reads a state dict that Python's torch.save wrote. Nothing in the file is run: its pickle is read as data.
#pragma once

#include <filesystem>
#include <string_view>

#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

// A dict of tensors, or a dict in which exactly one value is such a dict: {"state_dict": {…}, "epoch": 3}.
// The tensors are on the CPU, none requires a gradient, and those that shared memory share it. Throws
// SnapshotError that says what is in the file instead, or what is wrong with it.
NamedTensors read_pt(const std::filesystem::path& path);

// Takes the prefix off all names if all have it: Python's DistributedDataParallel puts "module." before each.
NamedTensors strip_prefix(NamedTensors tensors, std::string_view prefix);

}  // namespace lockstep::snapshot
