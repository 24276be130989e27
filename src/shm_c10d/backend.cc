// The backend object, broadcast, reductions, messages and the barrier. The other collectives are in
// backend_gather.cc.
#include "shm_c10d/backend.h"

#include <ATen/ATen.h>

#include "comm/dense.h"
#include "comm/flatten.h"
#include "comm/from_tensors.h"
#include "shm_c10d/arguments.h"
#include "shm_c10d/from_c10d.h"
#include "shm_c10d/sparse.h"
#include "shm_c10d/work.h"

namespace lockstep::shm_c10d {

namespace {

using c10d::OpType;
using comm::all_reduce_of;
using comm::bring_home;
using comm::broadcast_of;
using comm::dense_of;
using comm::kAnyRank;
using comm::landing_place;
using comm::reduce_of;
using comm::Request;

}  // namespace

Backend::Backend(std::shared_ptr<shm::Endpoint> endpoint, std::shared_ptr<const void> kept)
    : c10d_backend(endpoint->rank(), endpoint->world_size()),
      endpoint_(std::move(endpoint)),
      kept_(std::move(kept)) {
  init();
}

// Does not wait: operations under way continue.
Backend::~Backend() { endpoint_->retire(); }

Backend::WorkPtr Backend::broadcast(List& tensors, const c10d::BroadcastOptions& options) {
  const Arguments check("broadcast", rank_, size_);
  check.root(options.rootRank);
  check.root_tensor(options.rootTensor, tensors.size());
  check.dense(tensors);
  check.alike(tensors[0], tensors);
  const int root = static_cast<int>(options.rootRank);
  const auto& first = tensors[rank_ == root ? options.rootTensor : 0];
  const auto wire = rank_ == root ? dense_of(first) : landing_place(first);
  return Work::start(endpoint_, broadcast_of(wire, root, rank_),
                     {.title = "shm:broadcast",
                      .type = OpType::BROADCAST,
                      .inputs = tensors,
                      .outputs = {tensors},
                      .keep_alive = {wire},
                      .finish =
                          [tensors, wire] {
                            for (const auto& tensor : tensors) bring_home(tensor, wire);
                          }},
                     engine_timeout(options.timeout));
}

Backend::WorkPtr Backend::allreduce(List& tensors, const c10d::AllreduceOptions& options) {
  const Arguments check("allreduce", rank_, size_);
  check.not_empty(tensors);
  check.alike(tensors[0], tensors);
  if (tensors[0].layout() == at::kSparse) return sparse_allreduce(tensors, options);
  check.dense(tensors);
  const auto op = check.reduction(options.reduceOp);
  // Several tensors of one rank are reduced like those of several ranks. They are combined here first.
  auto wire = dense_of(tensors[0]);
  if (tensors.size() > 1) {
    const auto parts = dense_all(tensors);
    wire = at::empty_like(wire);
    std::vector<const void*> sources;
    for (const auto& part : parts) sources.push_back(part.data_ptr());
    void* const target = wire.data_ptr();
    const int count = static_cast<int>(sources.size());
    shm::kernel_for(wire.scalar_type(), op)(&target, 1, sources.data(), count, wire.numel(), count);
  }
  return Work::start(endpoint_, all_reduce_of(wire, op),
                     {.title = "shm:all_reduce",
                      .type = OpType::ALLREDUCE,
                      .inputs = tensors,
                      .outputs = {tensors},
                      .keep_alive = {wire},
                      .finish =
                          [tensors, wire] {
                            for (const auto& tensor : tensors) bring_home(tensor, wire);
                          }},
                     engine_timeout(options.timeout));
}

Backend::WorkPtr Backend::sparse_allreduce(const List& tensors, const c10d::AllreduceOptions& options) {
  const Arguments check("allreduce", rank_, size_);
  check.on_cpu(tensors);
  check.sparse_sum(options.reduceOp);
  const auto sum = std::make_shared<SparseSum>(tensors, rank_, size_);
  return Work::start(
      endpoint_, sum->exchange_facts(), [sum] { return sum->gather(); },
      {.title = "shm:all_reduce",
       .type = OpType::ALLREDUCE,
       .inputs = tensors,
       .outputs = {tensors},
       .finish =
           [tensors, sum] {
             // Not tensor.detach(): copy_() would replace the sparse contents of the detached tensor only.
             const at::NoGradGuard no_grad;
             const auto result = sum->result();
             for (const auto& tensor : tensors) tensor.copy_(result);
           }},
      engine_timeout(options.timeout));
}

Backend::WorkPtr Backend::allreduce_coalesced(List& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const Arguments check("allreduce_coalesced", rank_, size_);
  check.can_coalesce(tensors);
  const auto wire = comm::flatten(tensors);
  return Work::start(endpoint_, all_reduce_of(wire, check.reduction(options.reduceOp)),
                     {.title = "shm:all_reduce",
                      .type = OpType::ALLREDUCE_COALESCED,
                      .inputs = tensors,
                      .outputs = {tensors},
                      .keep_alive = {wire},
                      .finish = [tensors, wire] { comm::unflatten(wire, tensors); }},
                     engine_timeout(options.timeout));
}

Backend::WorkPtr Backend::reduce(List& tensors, const c10d::ReduceOptions& options) {
  const Arguments check("reduce", rank_, size_);
  check.root(options.rootRank);
  check.root_tensor(options.rootTensor, tensors.size());
  check.single(tensors);
  check.dense(tensors);
  const int root = static_cast<int>(options.rootRank);
  const auto target = tensors[0];
  const auto wire = dense_of(target);
  WorkInfo info{.title = "shm:reduce",
                .type = OpType::REDUCE,
                .inputs = tensors,
                .outputs = {tensors},
                .keep_alive = {wire}};
  if (rank_ == root) info.finish = [target, wire] { bring_home(target, wire); };
  return Work::start(endpoint_, reduce_of(wire, check.reduction(options.reduceOp), root, rank_),
                     std::move(info), engine_timeout(options.timeout));
}

Backend::WorkPtr Backend::send(List& tensors, int to, int tag) {
  const Arguments check("send", rank_, size_);
  check.single_message(tensors);
  check.dense(tensors);
  check.peer(to);
  check.tag(tag);
  return Work::send(endpoint_, dense_of(tensors[0]), to, tag);
}

Backend::WorkPtr Backend::recv(List& tensors, int from, int tag) {
  const Arguments check("recv", rank_, size_);
  check.single_message(tensors);
  check.dense(tensors);
  check.peer(from);
  check.tag(tag);
  return Work::receive(endpoint_, tensors[0], from, tag);
}

Backend::WorkPtr Backend::recvAnysource(List& tensors, int tag) {
  const Arguments check("recvAnysource", rank_, size_);
  check.single_message(tensors);
  check.dense(tensors);
  check.tag(tag);
  return Work::receive(endpoint_, tensors[0], kAnyRank, tag);
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  return Work::start(endpoint_, Request{}, {.title = "shm:barrier", .type = OpType::BARRIER},
                     engine_timeout(options.timeout));
}

}  // namespace lockstep::shm_c10d
