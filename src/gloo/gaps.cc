#include "gloo/gaps.h"

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "foreign/calls.h"

namespace lockstep::gloo {

namespace {

using RedOp = c10d::ReduceOp;

bool is_bitwise(ReduceOp op) { return op == ReduceOp::Band || op == ReduceOp::Bor || op == ReduceOp::Bxor; }

bool gloo_reduces(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

// The dtype to which tensors that Gloo cannot reduce directly are converted.
std::optional<at::ScalarType> wider(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return at::kFloat;
  if (dtype == at::kShort) return at::kInt;
  return std::nullopt;
}

// For booleans, OR is the maximum of their bytes and AND the minimum; XOR has no such form.
std::optional<RedOp::RedOpType> on_truth_values(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Max:
    case ReduceOp::Bor:
      return RedOp::MAX;
    case ReduceOp::Product:
    case ReduceOp::Min:
    case ReduceOp::Band:
      return RedOp::MIN;
    default:
      return std::nullopt;
  }
}

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  const bool truth = a.scalar_type() == at::kBool;
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Avg:
      return truth ? at::bitwise_or(a, b) : at::add(a, b);
    case ReduceOp::Product:
      return truth ? at::bitwise_and(a, b) : at::mul(a, b);
    case ReduceOp::Min:
      return truth ? at::bitwise_and(a, b) : at::minimum(a, b);
    case ReduceOp::Max:
      return truth ? at::bitwise_or(a, b) : at::maximum(a, b);
    case ReduceOp::Band:
      return at::bitwise_and(a, b);
    case ReduceOp::Bor:
      return at::bitwise_or(a, b);
    case ReduceOp::Bxor:
      return at::bitwise_xor(a, b);
  }
  throw UsageError("unknown reduce operation");
}

}  // namespace

at::Tensor as_bytes(const at::Tensor& tensor) {
  const auto flat = tensor.view({-1});
  return tensor.scalar_type() == at::kByte ? flat : flat.view(at::kByte);
}

std::optional<Wire> reduction_wire(const at::Tensor& tensor, ReduceOp op, int world_size) {
  const auto dtype = tensor.scalar_type();
  if (dtype == at::kBool) {
    const auto truth_op = on_truth_values(op);
    if (!truth_op) return std::nullopt;
    return Wire{.tensor = as_bytes(tensor), .op = *truth_op};
  }
  if (is_bitwise(op)) return std::nullopt;
  if (at::isComplexType(dtype)) {
    if (op != ReduceOp::Sum && op != ReduceOp::Avg) return std::nullopt;
    return reduction_wire(at::view_as_real(tensor), op, world_size);
  }
  if (!gloo_reduces(dtype)) {
    const auto wide = wider(dtype);
    if (!wide) return std::nullopt;
    auto wire = reduction_wire(tensor.to(*wide), op, world_size);
    if (wire) {
      wire->finish = [tensor, wide_tensor = wire->tensor, inner = wire->finish] {
        if (inner) inner();
        tensor.copy_(wide_tensor);
      };
    }
    return wire;
  }
  if (op == ReduceOp::Avg) {
    return Wire{
        .tensor = tensor, .op = RedOp::SUM, .finish = [tensor, world_size] { tensor.div_(world_size); }};
  }
  return Wire{.tensor = tensor, .op = foreign::to_c10d(op)};
}

at::Tensor reduce_locally(const std::vector<at::Tensor>& parts, ReduceOp op) {
  const auto dtype = parts.front().scalar_type();
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto widened = [&](const at::Tensor& part) { return narrow ? part.to(at::kFloat) : part; };
  at::Tensor total = widened(parts.front());
  for (size_t i = 1; i < parts.size(); ++i) total = combine(total, widened(parts[i]), op);
  if (op == ReduceOp::Avg) total = total / static_cast<double>(parts.size());
  return total.to(dtype);
}

}  // namespace lockstep::gloo
