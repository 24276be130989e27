// How many workers this machine can and should run.
#pragma once

#include <string>

namespace lockstep::launch {

int available_cores();  // physical ones that this process may use, and its cgroup gives time for
int available_gpus();   // NVIDIA's, respecting CUDA_VISIBLE_DEVICES

// What --nproc-per-node means: a number, auto, cpu or gpu. Throws UsageError with what was given.
int parse_nproc(const std::string& text);

// Each worker takes a process and a few open files, each other node one. Raises this process's limit of open
// files as far as is allowed, and throws UsageError when the limits are too low all the same.
void make_room_for(int nproc, int nnodes);

// A rank holds several connections to each of its peers: the usual 1024 open files are too few for some 250
// ranks.
constexpr int kMostWorkerFiles = 65536;
// Raises the soft limit of open files to the hard one, but not beyond kMostWorkerFiles: some programs close
// every number that they may have. For a worker before it runs; async-signal-safe.
void raise_open_files();

}  // namespace lockstep::launch
