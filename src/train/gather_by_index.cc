// gather_by_index.
//
// First every rank says what it has, so that all of them notice the same trouble and nobody is left waiting;
// then come the indices, from which all ranks see what is missing; then the rows.
#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <optional>

#include <ATen/ATen.h>

#include <lockstep/error.h>
#include <lockstep/metrics.h>

#include "base/error_text.h"
#include "comm/control.h"
#include "comm/purpose.h"
#include "train/group_of.h"

namespace lockstep {

namespace {

constexpr int64_t kMostDims = 16;

// What a rank has, as it travels: whole numbers only.
struct Offer {
  int64_t usable = 1;  // 0: this rank's arguments cannot be right
  int64_t dataset_size = 0;
  int64_t root = -1;
  int64_t rows = 0;
  int64_t dtype = -1;  // -1: no tensor
  int64_t dims = 0;    // of a row
  std::array<int64_t, kMostDims> sizes{};

  at::IntArrayRef row() const { return {sizes.data(), static_cast<size_t>(dims)}; }
  at::ScalarType type() const { return static_cast<at::ScalarType>(dtype); }
  std::string kind() const {
    return fmt::format("rows of {} [{}]", c10::toString(type()), fmt::join(row(), ", "));
  }
};

struct Call {
  const at::Tensor& values;
  const std::vector<size_t>& indices;
  size_t dataset_size;
  ProcessGroup& group;
  int root;

  bool receives() const { return root == -1 || root == group.rank(); }
  std::string where() const { return fmt::format("rank {}/{}", group.rank(), group.world_size()); }
};

// What is wrong with this rank's arguments.
std::optional<std::string> trouble_with(const Call& call) {
  if (call.root < -1 || call.root >= call.group.world_size())
    return fmt::format("there is no rank {}", call.root);
  if (call.dataset_size > static_cast<size_t>(std::numeric_limits<int64_t>::max()))
    return fmt::format("the dataset size is {}", call.dataset_size);
  for (size_t i = 0; i < call.indices.size(); ++i) {
    if (call.indices[i] < call.dataset_size) continue;
    return fmt::format("index {} (number {}) is outside of a dataset of {} samples", call.indices[i], i,
                       call.dataset_size);
  }
  const auto& values = call.values;
  if (!values.defined()) {
    if (call.indices.empty()) return std::nullopt;
    return fmt::format("the tensor is undefined, but there are {} indices", call.indices.size());
  }
  if (call.indices.empty() && values.numel() == 0) return std::nullopt;
  if (values.layout() != at::kStrided) return "the tensor is sparse";
  if (values.is_quantized()) return "the tensor is quantized";
  if (values.dim() == 0) return "the tensor is a single number, without rows";
  if (values.dim() - 1 > kMostDims) return fmt::format("a row has {} dimensions", values.dim() - 1);
  if (values.size(0) == static_cast<int64_t>(call.indices.size())) return std::nullopt;
  return fmt::format("the tensor has {} rows, but there are {} indices", values.size(0), call.indices.size());
}

Offer offer_of(const Call& call) {
  const auto& values = call.values;
  Offer offer{.dataset_size = static_cast<int64_t>(call.dataset_size),
              .root = call.root,
              .rows = static_cast<int64_t>(call.indices.size())};
  if (values.defined() && values.dim() > 0 && values.dim() - 1 <= kMostDims) {
    offer.dtype = static_cast<int64_t>(values.scalar_type());
    offer.dims = values.dim() - 1;
    std::copy(values.sizes().begin() + 1, values.sizes().end(), offer.sizes.begin());
  }
  return offer;
}

[[noreturn]] void disagree(const Call& call, const std::string& evidence, const std::string& hint) {
  throw MismatchError(base::compose({.what = "the ranks' rows do not make one dataset",
                                     .where = call.where(),
                                     .evidence = evidence,
                                     .hint = hint}));
}

// What all rows are, if the ranks agree. A rank without rows has no say, unless none has any.
Offer agree(const Call& call, const std::vector<Offer>& offers) {
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].usable == 0) {
      disagree(call, fmt::format("the arguments of rank {} cannot be right", rank),
               "see that rank's own error");
    }
  }
  const auto same = [&](const char* what, int64_t Offer::*field) {
    for (size_t rank = 1; rank < offers.size(); ++rank) {
      if (offers[rank].*field == offers[0].*field) continue;
      disagree(call,
               fmt::format("the {} is {} on rank 0, {} on rank {}", what, offers[0].*field,
                           offers[rank].*field, rank),
               "give the same on all ranks");
    }
  };
  same("dataset size", &Offer::dataset_size);
  same("root", &Offer::root);

  const auto has_rows = [](const Offer& offer) { return offer.rows > 0; };
  const auto has_tensor = [](const Offer& offer) { return offer.dtype != -1; };
  const auto first = std::find_if(offers.begin(), offers.end(), has_rows);
  if (first == offers.end()) {
    const auto any = std::find_if(offers.begin(), offers.end(), has_tensor);
    return any != offers.end() ? *any : Offer{.dtype = static_cast<int64_t>(at::kFloat)};
  }
  for (auto other = first; other != offers.end(); ++other) {
    if (!has_rows(*other) || (other->dtype == first->dtype && other->row() == first->row())) continue;
    disagree(call,
             fmt::format("rank {} has {}, rank {} has {}", first - offers.begin(), first->kind(),
                         other - offers.begin(), other->kind()),
             "convert or reshape them before");
  }
  return *first;
}

// The samples of each rank.
std::vector<at::Tensor> exchange_indices(const Call& call, const std::vector<Offer>& offers) {
  std::vector<at::Tensor> all;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    auto indices = at::empty({offers[rank].rows}, at::kLong);
    if (static_cast<int>(rank) == call.group.rank())
      std::copy(call.indices.begin(), call.indices.end(), indices.data_ptr<int64_t>());
    call.group.broadcast(indices, static_cast<int>(rank));
    all.push_back(indices);
  }
  return all;
}

void check_complete(const Call& call, const std::vector<at::Tensor>& indices) {
  std::vector<bool> seen(call.dataset_size);
  for (const auto& part : indices) {
    const auto* const begin = part.data_ptr<int64_t>();
    for (const auto* index = begin; index != begin + part.numel(); ++index) seen[*index] = true;
  }
  const auto missing = std::count(seen.begin(), seen.end(), false);
  if (missing == 0) return;
  const auto first = std::find(seen.begin(), seen.end(), false) - seen.begin();
  disagree(call,
           fmt::format("no rank has {} of the {} samples, the first of them {}", missing, call.dataset_size,
                       first),
           "give all that the sampler handed out; one with drop_last leaves some out");
}

// The rows of one rank, on itself and on the ranks that receive.
at::Tensor move_rows(const Call& call, int from, const at::Tensor& mine, const std::vector<int64_t>& sizes,
                     at::ScalarType type) {
  const bool from_here = from == call.group.rank();
  auto rows = from_here ? mine : at::Tensor();
  if (!from_here && call.receives()) rows = at::empty(sizes, type);
  if (call.root == -1) {
    call.group.broadcast(rows, from);
  } else if (from != call.root) {
    if (from_here) call.group.send(rows, call.root);
    if (call.receives()) call.group.recv(rows, from);
  }
  return rows;
}

at::Tensor gather(const Call& call) {
  const comm::Purpose purpose("gather_by_index");
  const at::NoGradGuard no_grad;
  auto mine = offer_of(call);
  const auto trouble = trouble_with(call);
  mine.usable = trouble ? 0 : 1;
  const auto offers = comm::control_of(call.group).gather("gather_by_index", mine);
  if (trouble) {
    throw UsageError(
        base::compose({.what = "gather_by_index cannot be done",
                       .where = call.where(),
                       .evidence = *trouble,
                       .hint = "give one row for each index, and indices below the dataset size"}));
  }
  const auto kind = agree(call, offers);
  const auto indices = exchange_indices(call, offers);
  check_complete(call, indices);

  auto sizes = kind.row().vec();
  sizes.insert(sizes.begin(), static_cast<int64_t>(call.dataset_size));
  at::Tensor result;
  if (call.receives()) result = at::empty(sizes, kind.type());
  const auto row_bytes = c10::multiply_integers(kind.row()) * c10::elementSize(kind.type());

  std::vector<bool> placed(call.dataset_size);
  for (int rank = 0; rank < call.group.world_size(); ++rank) {
    const auto count = offers[rank].rows;
    if (count == 0 || row_bytes == 0) continue;
    sizes.front() = count;
    const auto local =
        rank == call.group.rank() ? call.values.detach().to(at::kCPU).contiguous() : at::Tensor();
    const auto rows = move_rows(call, rank, local, sizes, kind.type());
    if (!call.receives()) continue;
    const auto* const index = indices[rank].data_ptr<int64_t>();
    const auto* const from = static_cast<const char*>(rows.data_ptr());
    auto* const to = static_cast<char*>(result.data_ptr());
    for (int64_t row = 0; row < count; ++row) {
      if (placed[index[row]]) continue;
      placed[index[row]] = true;
      std::memcpy(to + index[row] * row_bytes, from + row * row_bytes, row_bytes);
    }
  }
  return result;
}

}  // namespace

at::Tensor gather_by_index(const at::Tensor& values, const std::vector<size_t>& indices, size_t dataset_size,
                           ProcessGroup& group, GatherOptions options) {
  return gather({values, indices, dataset_size, group, options.root});
}

at::Tensor gather_by_index(const at::Tensor& values, const std::vector<size_t>& indices, size_t dataset_size,
                           const std::shared_ptr<ProcessGroup>& group, GatherOptions options) {
  return gather_by_index(values, indices, dataset_size, train::group_of(group, "gather_by_index"), options);
}

}  // namespace lockstep
