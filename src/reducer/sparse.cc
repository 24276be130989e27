#include "reducer/sparse.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "comm/control.h"

namespace lockstep::reducer {

namespace {

at::Tensor nothing_like(const at::Tensor& parameter) {
  // The rows are sparse, the contents of a row dense: the gradient of an embedding.
  return at::_sparse_coo_tensor_with_dims(1, parameter.dim() - 1, parameter.sizes(),
                                          parameter.options().layout(at::kSparse).requires_grad(false))
      .coalesce();
}

// The tensor, padded with zeros to `room` rows along `dim`.
at::Tensor with_room(const at::Tensor& tensor, int64_t dim, int64_t room) {
  auto sizes = tensor.sizes().vec();
  const auto rows = sizes[dim];
  sizes[dim] = room;
  auto result = at::zeros(sizes, tensor.options());
  if (rows > 0) result.narrow(dim, 0, rows).copy_(tensor);
  return result;
}

}  // namespace

SparseExchange::SparseExchange(const at::Tensor& gradient, const at::Tensor& parameter)
    : gradient_(gradient.defined() ? gradient.coalesce() : nothing_like(parameter)) {}

int64_t SparseExchange::rows() const { return gradient_._nnz(); }

void SparseExchange::start(ProcessGroup& group, std::vector<int64_t> rows) {
  rows_ = std::move(rows);
  const auto most = *std::max_element(rows_.begin(), rows_.end());
  if (most == 0) return;
  // Only tensors of the same size can be gathered: those with fewer rows are padded.
  indices_ = group.all_gather_async(with_room(gradient_.indices(), 1, most));
  values_ = group.all_gather_async(with_room(gradient_.values(), 0, most));
}

at::Tensor SparseExchange::finish(const Mean& mean) {
  auto all_indices = indices_.result();
  auto all_values = values_.result();
  if (all_indices.empty()) return gradient_;
  for (size_t rank = 0; rank < rows_.size(); ++rank) {
    all_indices[rank] = all_indices[rank].narrow(1, 0, rows_[rank]);
    all_values[rank] = all_values[rank].narrow(0, 0, rows_[rank]);
  }
  // Coalescing adds equal rows in rank order.
  auto sum =
      at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0), gradient_.sizes()).coalesce();
  mean.divide(sum.values());
  return sum;
}

at::Tensor average_sparse(ProcessGroup& group, const at::Tensor& gradient, const at::Tensor& parameter,
                          const Mean& mean) {
  SparseExchange exchange(gradient, parameter);
  exchange.start(group, comm::control_of(group).gather("sparse gradient, rows", exchange.rows()));
  return exchange.finish(mean);
}

}  // namespace lockstep::reducer
