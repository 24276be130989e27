// Process groups: the ranks of a job, and the collectives among them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <lockstep/c10d_fwd.h>
#include <lockstep/error.h>
#include <lockstep/work.h>

namespace lockstep {

class ProcessGroup;

enum class ReduceOp { Sum, Avg, Product, Min, Max, Band, Bor, Bxor };

struct InitOptions {
  // "auto" takes the best that this build has for where the ranks are; naming one that it lacks is a
  // UsageError. Where it is "auto", the environment's LOCKSTEP_BACKEND counts.
  std::string backend = "auto";
  // "env://" reads the environment of lockstep run, torchrun, Slurm, Open MPI or PMI (in this order), and is
  // a world of one without any of them; "tcp://host:port" meets at rank 0's port; "file:///path" at a file
  // all ranks see.
  std::string init_method = "env://";
  // -1: from the environment.
  int rank = -1, world_size = -1;
  // How long the ranks wait for each other, here and in every collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Sets this process's threads, cores and heap for training (docs/tuning.md). false leaves them alone.
  bool tune = true;
};

// Every rank must call it; returns when all have arrived. Throws UsageError (bad environment or options),
// MismatchError (two processes with one rank, different world sizes), TimeoutError (naming the ranks that are
// missing). Also tunes this process for training (InitOptions::tune).
//
// LibTorch seeds the random generator of each process with a random number, so that torch::randn would differ
// from rank to rank. If no rank has seeded its own (torch::manual_seed), all ranks begin with one seed here:
// what they draw from now on is the same, though another in each run. For streams of their own (dropout,
// noise), call lockstep::seed_everything(seed, group). A program that seeds, and a world of one, are left
// alone.
std::shared_ptr<ProcessGroup> init_process_group(InitOptions options = {});

// The group that init_process_group made. Throws UsageError before that.
std::shared_ptr<ProcessGroup> default_group();

// Forgets the default group; it ends when its last holder lets go. Does not communicate.
void destroy_process_group();

// Of the default group: "ws" its size, "rank" and "grank" this process's rank, "lrank" its rank on this
// machine.
int64_t get(std::string_view what);

// Ranks must make the same calls on a group in the same order; a tensor without elements is a call as any
// other. A group is not thread-safe; different groups may be used by different threads. Tensors may have any
// strides and any dtype the operation has a meaning for. A call that cannot be right (wrong shape, unknown
// rank) throws UsageError and changes nothing; any other error poisons the group, also that of a rank which
// makes another call than the others: MismatchError, with both calls.
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
  int local_rank() const;        // among the ranks of this group on this machine
  int local_world_size() const;  // how many those are
  int node_rank() const;
  int num_nodes() const;
  const std::string& backend() const;  // "shm" or "gloo"; "single" in a world of one

  // In place: afterwards every rank has the reduction over all ranks.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::Sum);
  // In place: afterwards every rank has root's values.
  void broadcast(const at::Tensor& tensor, int root = 0);
  // In place on root; what the others' tensors hold afterwards is not defined.
  void reduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::Sum);
  // One tensor of each rank, in rank order. Same shape and dtype on all ranks.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor);
  // output: world_size times the elements of input, rank after rank.
  void all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input);
  // input: world_size times the elements of output; this rank receives the reduction of its part.
  void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::Sum);
  // All ranks' tensors on root; empty on the others.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int root);
  // inputs: on root one tensor for each rank; ignored on the others.
  void scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int root);
  // Part i of input goes to rank i; part i of output comes from rank i. Equal parts.
  void all_to_all_single(const at::Tensor& output, const at::Tensor& input);
  // Point to point; calls match by ranks and tag (0 to 500 million), in order. Shape and dtype must be the
  // same on both sides.
  void send(const at::Tensor& tensor, int to, int tag = 0);
  void recv(const at::Tensor& tensor, int from, int tag = 0);
  // Returns when every rank has called it.
  void barrier();

  // The same, returning at once. The tensors must stay as they are until wait().
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

  // Memory that this group reduces with no copy, where its backend can; ordinary memory otherwise. A forked
  // child has a private picture of it (docs/shm-layout.md).
  at::Tensor empty(at::IntArrayRef sizes, at::TensorOptions options);
  // Every rank of this group must call it with the same ranks (of this group). Sorted, as PyTorch's. Returns
  // null on the ranks that are not in it.
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks);
  // Ends the group: calls under way or to come throw this error, here at once and on the other ranks when
  // they next wait for this one. For a rank that cannot go on, so that the others need not wait for the
  // timeout.
  void poison(const Error& why);
  // The c10d object underneath, for code that speaks c10d.
  c10::intrusive_ptr<c10d_backend> c10d() const;

 private:
  std::shared_ptr<Impl> impl_;  // shared with the Works under way
};

}  // namespace lockstep
