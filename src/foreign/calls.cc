#include "foreign/calls.h"

#include <ATen/ATen.h>

#include <lockstep/error.h>

namespace lockstep::foreign {

namespace {

using comm::Kind;
using RedOp = c10d::ReduceOp;

Tensors tensors_of(const comm::Request& request, const comm::Pieces& pieces) {
  const auto owners = std::make_shared<const Tensors>(request.keep.begin(), request.keep.end());
  const auto element = static_cast<int64_t>(c10::elementSize(request.dtype));
  const auto options = at::TensorOptions().dtype(request.dtype).device(request.device);
  Tensors tensors;
  for (const auto& piece : pieces) {
    const auto count = static_cast<int64_t>(piece.bytes) / element;
    // from_blob rejects null pointers, which empty tensors have.
    tensors.push_back(count == 0 ? at::empty({0}, options)
                                 : at::from_blob(
                                       piece.data, {count}, [owners](void*) {}, options));
  }
  return tensors;
}

bool adjacent(const Tensors& pieces) {
  for (size_t i = 1; i < pieces.size(); ++i) {
    const auto* end = static_cast<const char*>(pieces[i - 1].data_ptr()) + pieces[i - 1].nbytes();
    if (end != static_cast<const char*>(pieces[i].data_ptr())) return false;
  }
  return true;
}

C10dWork all_to_all(c10d_backend& backend, const Tensors& give, const Tensors& take) {
  if (!adjacent(give) || !adjacent(take)) {
    auto outputs = take, inputs = give;
    return backend.alltoall(outputs, inputs);
  }
  // The storage of the first piece does not include the others.
  const auto whole = [](const Tensors& pieces) {
    int64_t count = 0;
    for (const auto& piece : pieces) count += piece.numel();
    return at::from_blob(
        pieces.front().data_ptr(), {count}, [pieces](void*) {}, pieces.front().options());
  };
  auto output = whole(take), input = whole(give);
  std::vector<int64_t> equal_parts;
  return backend.alltoall_base(output, input, equal_parts, equal_parts);
}

}  // namespace

Tensors given_tensors(const comm::Request& request) { return tensors_of(request, request.give); }
Tensors taken_tensors(const comm::Request& request) { return tensors_of(request, request.take); }

RedOp::RedOpType to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return RedOp::SUM;
    case ReduceOp::Avg:
      return RedOp::AVG;
    case ReduceOp::Product:
      return RedOp::PRODUCT;
    case ReduceOp::Min:
      return RedOp::MIN;
    case ReduceOp::Max:
      return RedOp::MAX;
    case ReduceOp::Band:
      return RedOp::BAND;
    case ReduceOp::Bor:
      return RedOp::BOR;
    case ReduceOp::Bxor:
      return RedOp::BXOR;
  }
  throw UsageError("unknown reduce operation");
}

C10dWork all_reduce(c10d_backend& backend, const at::Tensor& tensor, RedOp::RedOpType op) {
  Tensors tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return backend.allreduce(tensors, options);
}

C10dWork reduce(c10d_backend& backend, const at::Tensor& tensor, RedOp::RedOpType op, int root) {
  Tensors tensors{tensor};
  c10d::ReduceOptions options;
  options.reduceOp = op;
  options.rootRank = root;
  return backend.reduce(tensors, options);
}

C10dWork move(c10d_backend& backend, const comm::Request& request, const Tensors& give, const Tensors& take) {
  switch (request.kind) {
    case Kind::Broadcast: {
      auto tensors = give.empty() ? take : give;
      c10d::BroadcastOptions options;
      options.rootRank = request.root;
      return backend.broadcast(tensors, options);
    }
    case Kind::AllGather: {
      std::vector<Tensors> outputs{take};
      auto inputs = give;
      return backend.allgather(outputs, inputs);
    }
    case Kind::Gather: {
      auto outputs = take.empty() ? std::vector<Tensors>{} : std::vector<Tensors>{take};
      auto inputs = give;
      c10d::GatherOptions options;
      options.rootRank = request.root;
      return backend.gather(outputs, inputs, options);
    }
    case Kind::Scatter: {
      auto inputs = give.empty() ? std::vector<Tensors>{} : std::vector<Tensors>{give};
      auto outputs = take;
      c10d::ScatterOptions options;
      options.rootRank = request.root;
      return backend.scatter(outputs, inputs, options);
    }
    case Kind::AllToAll:
      return all_to_all(backend, give, take);
    case Kind::Barrier:
      return backend.barrier();
    default:
      throw UsageError("a c10d backend does not support this call");
  }
}

}  // namespace lockstep::foreign
