#include "reducer/sparse.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace lockstep::reducer {

namespace {

at::Tensor nothing_like(const at::Tensor& parameter) {
  // Rows are sparse, what is in a row is dense: the gradient of an embedding.
  return at::_sparse_coo_tensor_with_dims(1, parameter.dim() - 1, parameter.sizes(),
                                          parameter.options().layout(at::kSparse).requires_grad(false))
      .coalesce();
}

// The first `rows` of a tensor along `dim`, in one with room for more.
at::Tensor with_room(const at::Tensor& tensor, int64_t dim, int64_t room) {
  auto sizes = tensor.sizes().vec();
  const auto rows = sizes[dim];
  sizes[dim] = room;
  auto result = at::zeros(sizes, tensor.options());
  if (rows > 0) result.narrow(dim, 0, rows).copy_(tensor);
  return result;
}

}  // namespace

SparseExchange::SparseExchange(ProcessGroup& group, const at::Tensor& gradient, const at::Tensor& parameter)
    : group_(group), gradient_(gradient.defined() ? gradient.coalesce() : nothing_like(parameter)) {
  counts_ = group_.all_gather_async(at::full({1}, gradient_._nnz(), at::kLong));
}

at::Tensor SparseExchange::finish(int participants) {
  std::vector<int64_t> counts;
  for (const auto& count : counts_.result()) counts.push_back(count.item<int64_t>());
  const auto most = *std::max_element(counts.begin(), counts.end());
  if (most == 0) return gradient_;

  // Tensors of one size can be gathered: those with fewer rows are filled up.
  auto indices = group_.all_gather_async(with_room(gradient_.indices(), 1, most));
  auto values = group_.all_gather_async(with_room(gradient_.values(), 0, most));
  auto all_indices = indices.result();
  auto all_values = values.result();
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    all_indices[rank] = all_indices[rank].narrow(1, 0, counts[rank]);
    all_values[rank] = all_values[rank].narrow(0, 0, counts[rank]);
  }
  // Coalescing adds up what rows have in common, in the order of the ranks.
  auto sum =
      at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0), gradient_.sizes()).coalesce();
  sum.values().div_(participants);
  return sum;
}

}  // namespace lockstep::reducer
