#include "foreign/calls.h"

#include <algorithm>

#include <ATen/ATen.h>

#include <lockstep/error.h>

namespace lockstep::foreign {

namespace {

using comm::Kind;
using RedOp = c10d::ReduceOp;

// The tensor of which these bytes are a part; null if the request keeps none.
const at::Tensor* owner_of(const comm::Request& request, const comm::Piece& piece) {
  for (const auto& tensor : request.keep) {
    const auto* const begin = static_cast<const std::byte*>(tensor.storage().data());
    if (begin <= piece.data && piece.data + piece.bytes <= begin + tensor.storage().nbytes()) return &tensor;
  }
  return nullptr;
}

// These bytes as a tensor with the owner's storage: a backend for a device with streams registers its own
// streams with the storage, so that the memory is not used again before they have finished.
at::Tensor part_of(const at::Tensor& owner, const comm::Piece& piece, const at::TensorOptions& options) {
  const auto element = static_cast<int64_t>(options.dtype().itemsize());
  const auto offset = piece.data - static_cast<const std::byte*>(owner.storage().data());
  return at::empty({0}, options)
      .set_(owner.storage(), offset / element, {static_cast<int64_t>(piece.bytes) / element}, {1});
}

Tensors tensors_of(const comm::Request& request, const comm::Pieces& pieces, c10::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype).device(request.device);
  const auto element = static_cast<int64_t>(options.dtype().itemsize());
  Tensors tensors;
  for (const auto& piece : pieces) {
    if (piece.bytes == 0) {
      tensors.push_back(at::empty({0}, options));
    } else if (const auto* const owner = owner_of(request, piece)) {
      tensors.push_back(part_of(*owner, piece, options));
    } else {
      tensors.push_back(at::from_blob(
          piece.data, {static_cast<int64_t>(piece.bytes) / element}, [keep = request.keep](void*) {},
          options));
    }
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

bool in_one_storage(const Tensors& pieces) {
  return std::all_of(pieces.begin(), pieces.end(),
                     [&](const at::Tensor& piece) { return piece.is_alias_of(pieces.front()); });
}

// All pieces as one tensor; undefined if they are not adjacent.
at::Tensor joined(const Tensors& pieces) {
  const auto& first = pieces.front();
  if (!adjacent(pieces)) return {};
  int64_t count = 0;
  for (const auto& piece : pieces) count += piece.numel();
  if (in_one_storage(pieces)) return first.as_strided({count}, {1});
  // Adjacent by chance. A device would need one storage.
  if (!first.device().is_cpu()) return {};
  return at::from_blob(
      first.data_ptr(), {count}, [pieces](void*) {}, first.options());
}

C10dWork all_to_all(c10d_backend& backend, const Tensors& give, const Tensors& take) {
  auto output = joined(take), input = joined(give);
  if (!output.defined() || !input.defined()) {
    auto outputs = take, inputs = give;
    return backend.alltoall(outputs, inputs);
  }
  std::vector<int64_t> equal_parts;
  return backend.alltoall_base(output, input, equal_parts, equal_parts);
}

}  // namespace

Tensors given_tensors(const comm::Request& request, c10::ScalarType dtype) {
  return tensors_of(request, request.give, dtype);
}
Tensors taken_tensors(const comm::Request& request, c10::ScalarType dtype) {
  return tensors_of(request, request.take, dtype);
}

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
