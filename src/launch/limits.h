// How many workers this machine can run, and how many it should run.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::launch {

int available_cores();  // physical cores that this process may use, limited by the CPU quota of its cgroup
int available_gpus();   // NVIDIA GPUs, limited by CUDA_VISIBLE_DEVICES
// The same for the device files in this folder and this value of CUDA_VISIBLE_DEVICES.
int count_gpus(const std::filesystem::path& dev, const std::optional<std::string>& visible);

// Parses --nproc-per-node: a number, auto, cpu or gpu. Throws UsageError, which quotes the text.
int parse_nproc(const std::string& text);

// Checks the limits of processes and open files: each worker needs a process and a few open files, each other
// node one file. Raises this process's limit of open files if necessary. Throws UsageError if a limit is too
// low.
void make_room_for(int nproc, int nnodes);

// A rank has several connections to each of its peers: the usual limit of 1024 open files is too low for
// about 250 ranks or more.
constexpr int kMostWorkerFiles = 65536;
// Raises the soft limit of open files to the hard limit, at most to kMostWorkerFiles: some programs close
// every descriptor number up to the limit. Called in a worker before exec; async-signal-safe.
void raise_open_files();

}  // namespace lockstep::launch
