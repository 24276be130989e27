// Reads a state dict written by Python's torch.save. Executes nothing in the file: reads its pickle as data.
#pragma once

#include <filesystem>
#include <string_view>

#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

// Accepts a dict of tensors, or a dict in which exactly one value is such a dict: {"state_dict": {…},
// "epoch": 3}. Returns tensors on the CPU that do not require gradients; tensors that shared memory still
// share it. Throws SnapshotError that tells what the file contains instead, or what is wrong with it.
NamedTensors read_pt(const std::filesystem::path& path);

// Removes the prefix from all names if all have it: Python's DistributedDataParallel prepends "module." to
// each.
NamedTensors strip_prefix(NamedTensors tensors, std::string_view prefix);

}  // namespace lockstep::snapshot
