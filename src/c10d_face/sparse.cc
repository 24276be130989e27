#include "c10d_face/sparse.h"

#include <algorithm>
#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/from_tensors.h"

namespace lockstep::c10d_face {

namespace {

// The facts that the ranks exchange; the sizes follow.
enum Fact : int64_t { kElements, kSparseDims, kDims, kSizes };
constexpr int64_t kMostDims = 64;  // LibTorch's own limit
constexpr int64_t kFacts = kSizes + kMostDims;

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.contiguous().view({-1}).view(at::kByte); }

// Whether all facts but the number of elements agree.
bool can_be_added(const int64_t* mine, const int64_t* theirs) {
  return std::equal(mine + kSparseDims, mine + kFacts, theirs + kSparseDims);
}

std::string describe(const int64_t* facts) {
  const auto sizes = at::IntArrayRef(facts + kSizes, std::clamp<int64_t>(facts[kDims], 0, kMostDims));
  std::string text;
  for (const auto size : sizes) text += fmt::format("{}{}", text.empty() ? "" : " x ", size);
  return fmt::format("[{}] with {} sparse dimensions", text, facts[kSparseDims]);
}

}  // namespace

SparseSum::SparseSum(const std::vector<at::Tensor>& tensors, int rank, int world_size)
    : rank_(rank), world_size_(world_size) {
  auto sum = tensors[0].detach();
  for (size_t i = 1; i < tensors.size(); ++i) sum = sum + tensors[i].detach();
  mine_ = sum.coalesce();
  facts_ = at::zeros({kFacts}, at::kLong);
  auto* facts = facts_.data_ptr<int64_t>();
  facts[kElements] = mine_._nnz();
  facts[kSparseDims] = mine_.sparse_dim();
  facts[kDims] = mine_.dim();
  std::copy(mine_.sizes().begin(), mine_.sizes().end(), facts + kSizes);
  all_facts_ = at::empty({world_size * kFacts}, at::kLong);
}

comm::Request SparseSum::exchange_facts() {
  auto request = comm::all_gather_of(all_facts_, facts_, world_size_);
  request.keep = {all_facts_, facts_};
  return request;
}

comm::Request SparseSum::gather() {
  const auto* mine = facts_.data_ptr<int64_t>();
  int64_t most = 0;
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto* theirs = all_facts_.data_ptr<int64_t>() + rank * kFacts;
    if (!can_be_added(mine, theirs)) {
      throw MismatchError(
          base::compose({.what = "all_reduce of sparse tensors failed",
                         .where = fmt::format("rank {}/{}", rank_, world_size_),
                         .evidence = fmt::format("this rank's tensor is {}, that of rank {} is {}",
                                                 describe(mine), rank, describe(theirs)),
                         .hint = "all ranks must pass tensors of the same sizes and sparse dimensions"}));
    }
    most = std::max(most, theirs[kElements]);
  }
  const auto indices = bytes_of(mine_.indices()), values = bytes_of(mine_.values());
  const auto index_bytes = mine_.sparse_dim() * static_cast<int64_t>(sizeof(int64_t));
  const auto value_bytes = c10::multiply_integers(mine_.sizes().slice(mine_.sparse_dim())) *
                           static_cast<int64_t>(mine_.element_size());
  elements_ = at::zeros({most * (index_bytes + value_bytes)}, at::kByte);
  elements_.narrow(0, 0, indices.numel()).copy_(indices);
  elements_.narrow(0, indices.numel(), values.numel()).copy_(values);
  all_elements_ = at::empty({world_size_ * elements_.numel()}, at::kByte);
  auto request = comm::all_gather_of(all_elements_, elements_, world_size_);
  // So that the comparison of the ranks' calls detects different types with the same number of bytes.
  request.dtype = mine_.scalar_type();
  request.count = most;
  request.keep = {all_elements_, elements_};
  return request;
}

at::Tensor SparseSum::result() const {
  std::vector<at::Tensor> indices, values;
  auto value_sizes = mine_.values().sizes().vec();
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto count = all_facts_.data_ptr<int64_t>()[rank * kFacts + kElements];
    value_sizes[0] = count;
    // Cloned, because a view into bytes may be unaligned.
    const auto bytes = all_elements_.narrow(0, rank * elements_.numel(), elements_.numel());
    const auto index_bytes = mine_.sparse_dim() * count * static_cast<int64_t>(sizeof(int64_t));
    const auto value_bytes = c10::multiply_integers(value_sizes) * static_cast<int64_t>(mine_.element_size());
    indices.push_back(
        bytes.narrow(0, 0, index_bytes).clone().view(at::kLong).view({mine_.sparse_dim(), count}));
    values.push_back(
        bytes.narrow(0, index_bytes, value_bytes).clone().view(mine_.scalar_type()).view(value_sizes));
  }
  return at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values, 0), mine_.sizes()).coalesce();
}

}  // namespace lockstep::c10d_face
