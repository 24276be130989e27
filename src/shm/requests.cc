#include "shm/requests.h"

#include <fmt/format.h>
#include <optional>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::shm {

namespace {

std::optional<Element> element_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return Element::Float;
    case c10::ScalarType::Double:
      return Element::Double;
    case c10::ScalarType::Half:
      return Element::Half;
    case c10::ScalarType::BFloat16:
      return Element::BFloat16;
    case c10::ScalarType::Char:
      return Element::Int8;
    case c10::ScalarType::Byte:
      return Element::UInt8;
    case c10::ScalarType::Short:
      return Element::Int16;
    case c10::ScalarType::Int:
      return Element::Int32;
    case c10::ScalarType::Long:
      return Element::Int64;
    case c10::ScalarType::Bool:
      return Element::Bool;
    case c10::ScalarType::ComplexFloat:
      return Element::ComplexFloat;
    case c10::ScalarType::ComplexDouble:
      return Element::ComplexDouble;
    default:
      return std::nullopt;
  }
}

Kernel kernel_for(c10::ScalarType dtype, Combine combine) {
  const auto element = element_of(dtype);
  if (const auto kernel = element ? find_kernel(*element, combine) : nullptr) return kernel;
  throw UsageError(base::compose(
      {.what = fmt::format("this reduction of {} tensors has no meaning", c10::toString(dtype)),
       .hint = "averages need floating-point or complex numbers, bit operations integers or truth values, "
               "minimum and maximum numbers that have an order"}));
}

Piece piece_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

Pieces pieces_of(const Tensors& tensors) {
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
  auto* at = static_cast<std::byte*>(tensor.data_ptr());
  Pieces pieces;
  for (const auto count : counts) {
    const size_t bytes = count * tensor.element_size();
    pieces.push_back({at, bytes});
    at += bytes;
  }
  return pieces;
}

Request request_of(Kind kind, const at::Tensor& tensor, uint64_t count) {
  Request request;
  request.kind = kind;
  request.dtype = tensor.scalar_type();
  request.count = count;
  return request;
}

void set_reduction(Request& request, Combine combine) {
  request.combine = combine;
  request.kernel = kernel_for(request.dtype, combine);
}

}  // namespace

Request all_reduce_of(const at::Tensor& tensor, Combine combine) {
  auto request = request_of(Kind::AllReduce, tensor, tensor.numel());
  set_reduction(request, combine);
  request.give.push_back(piece_of(tensor));
  request.take.push_back(piece_of(tensor));
  return request;
}

Request broadcast_of(const at::Tensor& tensor, int root, int rank) {
  auto request = request_of(Kind::Broadcast, tensor, tensor.numel());
  request.root = root;
  (rank == root ? request.give : request.take).push_back(piece_of(tensor));
  return request;
}

Request reduce_of(const at::Tensor& tensor, Combine combine, int root, int rank) {
  auto request = request_of(Kind::Reduce, tensor, tensor.numel());
  set_reduction(request, combine);
  request.root = root;
  request.give.push_back(piece_of(tensor));
  if (rank == root) request.take.push_back(piece_of(tensor));
  return request;
}

Request all_gather_of(const Tensors& outputs, const at::Tensor& input, int world_size) {
  auto request = request_of(Kind::AllGather, input, input.numel());
  request.give.push_back(piece_of(input));
  request.take = outputs.size() == 1 ? slices_of(outputs[0], world_size) : pieces_of(outputs);
  return request;
}

Request gather_of(const Tensors& outputs, const at::Tensor& input, int root) {
  auto request = request_of(Kind::Gather, input, input.numel());
  request.root = root;
  request.give.push_back(piece_of(input));
  request.take = pieces_of(outputs);
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

Request reduce_scatter_of(const at::Tensor& output, const Tensors& inputs, Combine combine, int world_size) {
  auto request = request_of(Kind::ReduceScatter, output, output.numel());
  set_reduction(request, combine);
  request.give = inputs.size() == 1 ? slices_of(inputs[0], world_size) : pieces_of(inputs);
  request.give_is_contiguous = inputs.size() == 1;
  request.take.push_back(piece_of(output));
  return request;
}

Request all_to_all_of(const Tensors& outputs, const Tensors& inputs) {
  auto request = request_of(Kind::AllToAll, inputs[0], 0);
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
  return request;
}

}  // namespace lockstep::shm
