#include "comm/from_tensors.h"

namespace lockstep::comm {

namespace {

Piece piece_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

Pieces pieces_of(at::ArrayRef<at::Tensor> tensors) {
  Pieces pieces;
  for (const auto& tensor : tensors) pieces.push_back(piece_of(tensor));
  return pieces;
}

Pieces slices_of(const at::Tensor& tensor, int count) {
  const auto whole = piece_of(tensor);
  const size_t bytes = whole.bytes / count;
  Pieces pieces;
  for (int i = 0; i < count; ++i) pieces.push_back({whole.data + i * bytes, bytes});
  return pieces;
}

Pieces slices_of(const at::Tensor& tensor, const std::vector<int64_t>& counts) {
  auto* next = static_cast<std::byte*>(tensor.data_ptr());
  Pieces pieces;
  for (const auto count : counts) {
    const size_t bytes = count * tensor.element_size();
    pieces.push_back({next, bytes});
    next += bytes;
  }
  return pieces;
}

Request request_of(Kind kind, const at::Tensor& tensor, uint64_t count) {
  Request request;
  request.kind = kind;
  request.dtype = tensor.scalar_type();
  request.device = tensor.device();
  request.count = count;
  return request;
}

// Small tensors are copied anyway.
constexpr size_t kWorthMoving = size_t{256} << 10;

c10::intrusive_ptr<c10::StorageImpl> storage_of(const at::Tensor& tensor) {
  if (tensor.nbytes() < kWorthMoving) return {};
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl());
}

}  // namespace

Request all_reduce_of(const at::Tensor& tensor, ReduceOp op) {
  auto request = request_of(Kind::AllReduce, tensor, tensor.numel());
  request.op = op;
  request.give.push_back(piece_of(tensor));
  request.take.push_back(piece_of(tensor));
  request.storage = storage_of(tensor);
  return request;
}

Request broadcast_of(const at::Tensor& tensor, int root, int rank) {
  auto request = request_of(Kind::Broadcast, tensor, tensor.numel());
  request.root = root;
  (rank == root ? request.give : request.take).push_back(piece_of(tensor));
  if (rank == root) request.storage = storage_of(tensor);
  return request;
}

Request reduce_of(const at::Tensor& tensor, ReduceOp op, int root, int rank) {
  auto request = request_of(Kind::Reduce, tensor, tensor.numel());
  request.op = op;
  request.root = root;
  request.give.push_back(piece_of(tensor));
  if (rank == root) request.take.push_back(piece_of(tensor));
  request.storage = storage_of(tensor);
  return request;
}

Request all_gather_of(at::ArrayRef<at::Tensor> outputs, const at::Tensor& input, int world_size) {
  auto request = request_of(Kind::AllGather, input, input.numel());
  request.give.push_back(piece_of(input));
  request.take = outputs.size() == 1 ? slices_of(outputs[0], world_size) : pieces_of(outputs);
  request.storage = storage_of(input);
  return request;
}

Request gather_of(const Tensors& outputs, const at::Tensor& input, int root) {
  auto request = request_of(Kind::Gather, input, input.numel());
  request.root = root;
  request.give.push_back(piece_of(input));
  request.take = pieces_of(outputs);
  request.storage = storage_of(input);
  return request;
}

Request scatter_of(const at::Tensor& output, const Tensors& inputs, int root) {
  auto request = request_of(Kind::Scatter, output, output.numel());
  request.root = root;
  request.give = pieces_of(inputs);
  request.give_is_contiguous = false;
  request.take.push_back(piece_of(output));
  return request;
}

Request reduce_scatter_of(const at::Tensor& output, at::ArrayRef<at::Tensor> inputs, ReduceOp op,
                          int world_size) {
  auto request = request_of(Kind::ReduceScatter, output, output.numel());
  request.op = op;
  request.give = inputs.size() == 1 ? slices_of(inputs[0], world_size) : pieces_of(inputs);
  request.give_is_contiguous = inputs.size() == 1;
  if (request.give_is_contiguous) request.storage = storage_of(inputs[0]);
  request.take.push_back(piece_of(output));
  return request;
}

Request all_to_all_of(const Tensors& outputs, const Tensors& inputs) {
  auto request = request_of(Kind::AllToAll, inputs[0], 0);
  request.any_sizes = true;
  request.give = pieces_of(inputs);
  request.give_is_contiguous = false;
  request.take = pieces_of(outputs);
  return request;
}

Request all_to_all_of(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<int64_t>& output_counts, const std::vector<int64_t>& input_counts) {
  auto request = request_of(Kind::AllToAll, input, 0);
  request.give = slices_of(input, input_counts);
  request.take = slices_of(output, output_counts);
  request.storage = storage_of(input);
  return request;
}

Request send_of(const at::Tensor& tensor, int to, int tag) {
  auto request = request_of(Kind::Send, tensor, tensor.numel());
  request.peer = to;
  request.tag = tag;
  request.give.push_back(piece_of(tensor));
  return request;
}

Request receive_of(const at::Tensor& tensor, int from, int tag) {
  auto request = request_of(Kind::Receive, tensor, tensor.numel());
  request.peer = from;
  request.tag = tag;
  request.take.push_back(piece_of(tensor));
  return request;
}

}  // namespace lockstep::comm
