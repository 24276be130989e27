// Process groups: the ranks of a job, and the collectives among them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <lockstep/c10d_fwd.h>
#include <lockstep/error.h>
#include <lockstep/work.h>

namespace lockstep {

class ProcessGroup;

enum class ReduceOp { Sum, Avg, Product, Min, Max, Band, Bor, Bxor };

struct InitOptions {
  // "shm", "hybrid", "gloo", "nccl" or "auto". "auto" uses the environment variable LOCKSTEP_BACKEND if it is
  // set; otherwise shared memory if all ranks are on one machine, shared memory inside the machines and Gloo
  // between them ("hybrid") if they are on several, and Gloo alone if the ranks of a machine cannot share
  // memory. If this LibTorch has NCCL and every rank a CUDA device of its own, "auto" also carries CUDA
  // tensors, over NCCL; "nccl" is the same, but without such devices a UsageError (docs/cuda.md). So is a
  // backend that this build does not have.
  std::string backend = "auto";
  // "env://" reads the environment variables of lockstep run, torchrun, Slurm, Open MPI or PMI, in this
  // order; without any of them, the world size is 1. "tcp://host:port": the ranks meet at this port of rank
  // 0. "file:///path": the ranks meet at this file, which all of them must see.
  std::string init_method = "env://";
  // -1: from the environment.
  int rank = -1, world_size = -1;
  // The deadline of init_process_group and of every collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Sets this process's threads, cores and heap for training (docs/tuning.md). false: leaves them unchanged.
  bool tune = true;
};

// Creates the default group. Every rank must call it; it blocks until all ranks have arrived. Throws
// UsageError (invalid environment or options, or the default group already exists), MismatchError (two
// processes with the same rank, different world sizes or backends), PeerLostError (a rank has ended),
// TimeoutError (names the missing ranks) or SystemError (a port cannot be opened). Also tunes this process
// for training (InitOptions::tune).
//
// LibTorch seeds the random generator of each process with a random number, so torch::randn would return
// different numbers on each rank. If no rank has called torch::manual_seed, all ranks continue with one
// common seed, which differs from run to run: from here on, they draw the same numbers. To draw different
// numbers on each rank (dropout, noise), call lockstep::seed_everything(seed, group). If a rank has set a
// seed, or if the world size is 1, the generators are not changed.
std::shared_ptr<ProcessGroup> init_process_group(InitOptions options = {});

// Returns the group that init_process_group created. Throws UsageError if there is none.
std::shared_ptr<ProcessGroup> default_group();

// Releases the default group, which ends when its last shared_ptr is released. Does not communicate.
void destroy_process_group();

// Returns a property of the default group. "ws": its size; "rank" or "grank": the rank of this process;
// "lrank": its rank on this machine. Throws UsageError for any other name, or if there is no default group.
int64_t get(std::string_view what);

// All ranks must make the same calls on a group in the same order, including calls with empty tensors.
// Tensors may have any strides, and any dtype for which the operation is defined. A group is not thread-safe;
// different groups may be used by different threads.
//
// A call with invalid arguments (wrong shape, unknown rank) throws UsageError and changes nothing. Any other
// error poisons the group: every later call throws it again. Ranks that make different calls get a
// MismatchError that contains both calls.
class ProcessGroup {
 public:
  struct Impl;    // src/comm/group.h: the ranks, and the connections between them
  struct Handle;  // src/comm/generation.cc
  explicit ProcessGroup(std::shared_ptr<Impl> impl);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const;
  int world_size() const;
  int local_rank() const;        // among this group's ranks on this machine
  int local_world_size() const;  // the number of those ranks
  int node_rank() const;
  int num_nodes() const;
  // "shm", "gloo" or "hybrid", followed by "+nccl" if the group carries CUDA tensors; "single" in a world of
  // one.
  const std::string& backend() const;
  // The device of this rank, for module->to(group->device()): with NCCL, the CUDA device of its local rank,
  // otherwise the CPU. init_process_group makes it the calling thread's current device.
  at::Device device() const;

  // These calls block until they are complete on this rank. With CUDA tensors they return at once, as in
  // PyTorch: what is queued on the current stream afterwards, and what reads from the device, sees the
  // results.

  // In place: every rank receives the reduction over all ranks.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::Sum);
  // In place: every rank receives root's values.
  void broadcast(const at::Tensor& tensor, int root = 0);
  // In place on root. The contents of the other ranks' tensors are undefined afterwards.
  void reduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::Sum);
  // Returns the tensors of all ranks, in rank order. Shape and dtype must be the same on all ranks.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor);
  // output: receives the inputs of all ranks, in rank order; it has world_size times as many elements as
  // input.
  void all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input);
  // input: world_size times as many elements as output. Rank i receives the reduction of part i.
  void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::Sum);
  // Returns the tensors of all ranks on root, and an empty vector on the others.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int root);
  // inputs: on root, one tensor per rank; ignored on the other ranks.
  void scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int root);
  // Sends part i of input to rank i, and receives part i of output from rank i. The parts have equal sizes.
  void all_to_all_single(const at::Tensor& output, const at::Tensor& input);
  // Point to point. Calls are matched by ranks and tag (0 to 500 million), in order. Shape and dtype must
  // be the same on both sides.
  void send(const at::Tensor& tensor, int to, int tag = 0);
  void recv(const at::Tensor& tensor, int from, int tag = 0);
  // Blocks until every rank has called it.
  void barrier();

  // The same calls without blocking. Do not modify the tensors until Work::wait() has returned.
  Work all_reduce_async(const at::Tensor& tensor, ReduceOp op = ReduceOp::Sum);
  Work broadcast_async(const at::Tensor& tensor, int root = 0);
  Work reduce_async(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::Sum);
  Work all_gather_async(const at::Tensor& tensor);
  Work all_gather_into_tensor_async(const at::Tensor& output, const at::Tensor& input);
  Work reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                   ReduceOp op = ReduceOp::Sum);
  Work gather_async(const at::Tensor& tensor, int root);
  Work scatter_async(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int root);
  Work all_to_all_single_async(const at::Tensor& output, const at::Tensor& input);
  Work send_async(const at::Tensor& tensor, int to, int tag = 0);
  Work recv_async(const at::Tensor& tensor, int from, int tag = 0);
  Work barrier_async();

  // Returns an uninitialised tensor in memory that this group reduces without copying, if its backend can;
  // otherwise in ordinary memory. A forked child gets a private copy of it (docs/shm-layout.md). Use its
  // parts in calls of one group at a time: when a group fails, the pages of its calls are withdrawn from all
  // peers.
  at::Tensor empty(at::IntArrayRef sizes, at::TensorOptions options);
  // Creates a group of some ranks of this group. Every rank of this group must call it with the same ranks,
  // in any order; it blocks until all have. As in PyTorch, the members are numbered in ascending order of
  // their ranks here. Returns null on ranks that are not members.
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks);
  // Ends the group: calls in progress and later calls throw this error, here immediately, and on the other
  // ranks when they next wait for this one. For a rank that cannot continue, so that the others do not wait
  // until the timeout.
  void poison(const Error& why);
  // A c10d backend of this group for tensors on the CPU, for code that uses c10d: lockstep's own for shared
  // memory and "hybrid" (docs/multi-node.md), otherwise Gloo. It may outlive this handle.
  c10::intrusive_ptr<c10d_backend> c10d() const;

 private:
  std::shared_ptr<Impl> impl_;  // shared with Works that are in progress
};

}  // namespace lockstep
