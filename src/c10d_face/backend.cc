// The backend object, broadcast, reductions, messages and the barrier. The other collectives are in
// backend_gather.cc.
#include "c10d_face/backend.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "base/token.h"
#include "c10d_face/arguments.h"
#include "c10d_face/from_c10d.h"
#include "c10d_face/sparse.h"
#include "comm/dense.h"
#include "comm/flatten.h"
#include "comm/from_tensors.h"
#include "shm/call.h"

namespace lockstep::c10d_face {

namespace {

using c10d::OpType;
using comm::all_reduce_of;
using comm::bring_home;
using comm::broadcast_of;
using comm::dense_of;
using comm::kAnyRank;
using comm::landing_place;
using comm::receive_of;
using comm::reduce_of;
using comm::Request;
using comm::send_of;
using namespace std::chrono_literals;

}  // namespace

Backend::Backend(std::unique_ptr<Engine> engine, Connect connect)
    : compat::Backend(engine->rank(), engine->world_size()),
      engine_(std::move(engine)),
      connect_(std::move(connect)),
      handle_("lockstep-" + base::make_nonce()) {
  init();
}

Backend::WorkPtr Backend::start(Request request, WorkInfo info, std::chrono::milliseconds timeout) {
  request.timeout = std::max(timeout, 0ms);
  return engine_->start(std::move(request), std::move(info));
}

Backend::WorkPtr Backend::broadcast(List& tensors, const c10d::BroadcastOptions& options) {
  const Arguments check("broadcast", *engine_);
  check.root(options.rootRank);
  check.root_tensor(options.rootTensor, tensors.size());
  check.dense(tensors);
  check.alike(tensors[0], tensors);
  const int root = static_cast<int>(options.rootRank);
  const auto& first = tensors[rank_ == root ? options.rootTensor : 0];
  const auto wire = rank_ == root ? dense_of(first) : landing_place(first);
  return start(broadcast_of(wire, root, rank_),
               {.type = OpType::BROADCAST,
                .inputs = tensors,
                .outputs = {tensors},
                .keep_alive = {wire},
                .finish =
                    [tensors, wire] {
                      for (const auto& tensor : tensors) bring_home(tensor, wire);
                    }},
               options.timeout);
}

Backend::WorkPtr Backend::allreduce(List& tensors, const c10d::AllreduceOptions& options) {
  const Arguments check("allreduce", *engine_);
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
  return start(all_reduce_of(wire, op),
               {.type = OpType::ALLREDUCE,
                .inputs = tensors,
                .outputs = {tensors},
                .keep_alive = {wire},
                .finish =
                    [tensors, wire] {
                      for (const auto& tensor : tensors) bring_home(tensor, wire);
                    }},
               options.timeout);
}

Backend::WorkPtr Backend::sparse_allreduce(const List& tensors, const c10d::AllreduceOptions& options) {
  const Arguments check("allreduce", *engine_);
  check.on_cpu(tensors);
  check.sparse_sum(options.reduceOp);
  const auto sum = std::make_shared<SparseSum>(tensors, rank_, size_);
  auto first = sum->exchange_facts();
  first.timeout = std::max(options.timeout, 0ms);
  return engine_->start(
      std::move(first), [sum] { return sum->gather(); },
      {.type = OpType::ALLREDUCE, .inputs = tensors, .outputs = {tensors}, .finish = [tensors, sum] {
         // Not tensor.detach(): copy_() would replace the sparse contents of the detached tensor only.
         const at::NoGradGuard no_grad;
         const auto result = sum->result();
         for (const auto& tensor : tensors) tensor.copy_(result);
       }});
}

Backend::WorkPtr Backend::allreduce_coalesced(List& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const Arguments check("allreduce_coalesced", *engine_);
  check.can_coalesce(tensors);
  const auto wire = comm::flatten(tensors);
  return start(all_reduce_of(wire, check.reduction(options.reduceOp)),
               {.type = OpType::ALLREDUCE_COALESCED,
                .inputs = tensors,
                .outputs = {tensors},
                .keep_alive = {wire},
                .finish = [tensors, wire] { comm::unflatten(wire, tensors); }},
               options.timeout);
}

Backend::WorkPtr Backend::reduce(List& tensors, const c10d::ReduceOptions& options) {
  const Arguments check("reduce", *engine_);
  check.root(options.rootRank);
  check.root_tensor(options.rootTensor, tensors.size());
  check.single(tensors);
  check.dense(tensors);
  const int root = static_cast<int>(options.rootRank);
  const auto target = tensors[0];
  const auto wire = dense_of(target);
  WorkInfo info{.type = OpType::REDUCE, .inputs = tensors, .outputs = {tensors}, .keep_alive = {wire}};
  if (rank_ == root) info.finish = [target, wire] { bring_home(target, wire); };
  return start(reduce_of(wire, check.reduction(options.reduceOp), root, rank_), std::move(info),
               options.timeout);
}

Backend::WorkPtr Backend::send(List& tensors, int to, int tag) {
  const Arguments check("send", *engine_);
  check.single_message(tensors);
  check.dense(tensors);
  check.peer(to);
  check.tag(tag);
  const auto wire = dense_of(tensors[0]);
  return engine_->start(send_of(wire, to, tag),
                        {.type = OpType::SEND, .inputs = tensors, .keep_alive = {wire}});
}

Backend::WorkPtr Backend::recv(List& tensors, int from, int tag) {
  const Arguments check("recv", *engine_);
  check.single_message(tensors);
  check.dense(tensors);
  check.peer(from);
  check.tag(tag);
  return receive(tensors[0], from, tag, OpType::RECV);
}

Backend::WorkPtr Backend::recvAnysource(List& tensors, int tag) {
  const Arguments check("recvAnysource", *engine_);
  check.single_message(tensors);
  check.dense(tensors);
  check.tag(tag);
  return receive(tensors[0], kAnyRank, tag, OpType::RECVANYSOURCE);
}

Backend::WorkPtr Backend::receive(const at::Tensor& tensor, int from, int tag, OpType type) {
  const auto landed = landing_place(tensor);
  return engine_->start(receive_of(landed, from, tag),
                        {.type = type,
                         .inputs = {tensor},
                         .outputs = {{tensor}},
                         .keep_alive = {landed},
                         .finish = [tensor, landed] { bring_home(tensor, landed); }});
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  return start(Request{}, {.type = OpType::BARRIER}, options.timeout);
}

}  // namespace lockstep::c10d_face
