#include "comm/gaps.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::comm {

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

// The dtype in which Gloo can reduce what it cannot reduce as it is.
std::optional<at::ScalarType> wider(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return at::kFloat;
  if (dtype == at::kShort) return at::kInt;
  return std::nullopt;
}

// For truth values, or is the largest and and the smallest of their bytes; exclusive or has no such form.
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

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return "Sum";
    case ReduceOp::Avg:
      return "Avg";
    case ReduceOp::Product:
      return "Product";
    case ReduceOp::Min:
      return "Min";
    case ReduceOp::Max:
      return "Max";
    case ReduceOp::Band:
      return "Band";
    case ReduceOp::Bor:
      return "Bor";
    case ReduceOp::Bxor:
      return "Bxor";
  }
  return "?";
}

void check_reduction(ReduceOp op, at::ScalarType dtype) {
  const bool integral = at::isIntegralType(dtype, /*includeBool=*/true);
  const char* wanted = nullptr;
  if (op == ReduceOp::Avg && integral) wanted = "floating-point or complex numbers; sum integers and divide";
  if (is_bitwise(op) && !integral) wanted = "integers or truth values";
  if ((op == ReduceOp::Min || op == ReduceOp::Max) && at::isComplexType(dtype)) {
    wanted = "numbers that have an order, which complex ones have not";
  }
  if (wanted == nullptr) return;
  throw UsageError(base::compose(
      {.what = fmt::format("{} of {} tensors has no meaning", name_of(op), c10::toString(dtype)),
       .hint = fmt::format("it takes {}", wanted)}));
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  const auto flat = tensor.view({-1});
  return tensor.scalar_type() == at::kByte ? flat : flat.view(at::kByte);
}

std::optional<Wire> reduction_wire(const std::string& backend, const at::Tensor& tensor, ReduceOp op,
                                   int world_size) {
  if (backend != "gloo") return Wire{.tensor = tensor, .op = to_c10d(op)};
  const auto dtype = tensor.scalar_type();
  if (dtype == at::kBool) {
    const auto truth_op = on_truth_values(op);
    if (!truth_op) return std::nullopt;
    return Wire{.tensor = as_bytes(tensor), .op = *truth_op};
  }
  if (is_bitwise(op)) return std::nullopt;
  if (at::isComplexType(dtype)) {
    if (op != ReduceOp::Sum && op != ReduceOp::Avg) return std::nullopt;
    return reduction_wire(backend, at::view_as_real(tensor), op, world_size);
  }
  if (!gloo_reduces(dtype)) {
    const auto wide = wider(dtype);
    if (!wide) return std::nullopt;
    auto wire = reduction_wire(backend, tensor.to(*wide), op, world_size);
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
  return Wire{.tensor = tensor, .op = to_c10d(op)};
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

}  // namespace lockstep::comm
