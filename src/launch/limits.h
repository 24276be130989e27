// How many workers this machine can and should run.
#pragma once

#include <string>

namespace lockstep::launch {

int available_cores();  // physical ones that this process may use, and its cgroup gives time for
int available_gpus();   // NVIDIA's, respecting CUDA_VISIBLE_DEVICES

// What --nproc-per-node means: a number, auto, cpu or gpu. Throws UsageError with what was given.
int parse_nproc(const std::string& text);

// Each worker takes a process and a few open files. Raises the limit of open files as far as is allowed, and
// throws UsageError when the limits are too low all the same.
void make_room_for(int nproc);
// The workers' own limit of open files is the one the user gave; async-signal-safe.
void restore_limits();

}  // namespace lockstep::launch
