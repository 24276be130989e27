#include "c10d_face/arguments.h"

#include <cctype>
#include <fmt/format.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace lockstep::c10d_face {

// The backend is named as LibTorch names its own: ProcessGroupGloo.
void Arguments::reject(const std::string& why) const {
  std::string name = engine_.name();
  name.front() = static_cast<char>(std::toupper(name.front()));
  throw c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                   fmt::format("ProcessGroup{}::{}: {}", name, call_, why));
}

void Arguments::root(int64_t rank) const {
  c10d::assertRootRank([&](const std::string& why) { reject(why); }, static_cast<int>(rank),
                       engine_.world_size());
}

void Arguments::root_tensor(int64_t index, size_t count) const {
  c10d::assertRootTensor([&](const std::string& why) { reject(why); }, static_cast<int>(index),
                         static_cast<int>(count));
}

void Arguments::not_empty(List tensors) const {
  c10d::assertNonEmpty([&](const std::string& why) { reject(why); }, tensors);
}

void Arguments::single(List tensors) const {
  c10d::assertSingleElement([&](const std::string& why) { reject(why); }, tensors);
}

void Arguments::single_message(List tensors) const {
  if (tensors.size() != 1) reject("takes a single tensor");
}

void Arguments::single_input(List tensors) const {
  c10d::assertSingleElementInput([&](const std::string& why) { reject(why); }, tensors);
}

void Arguments::single_output(List tensors) const {
  c10d::assertSingleElementOutput([&](const std::string& why) { reject(why); }, tensors);
}

void Arguments::dense(List tensors) const {
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) reject("a tensor is undefined");
    c10d::assertDense([&](const std::string& why) { reject(why); }, tensor);
  }
  on_cpu(tensors);
}

void Arguments::on_cpu(List tensors) const {
  for (const auto& tensor : tensors) {
    c10d::assertCPU([&](const std::string& why) { reject(why); }, tensor);
  }
}

void Arguments::sparse_sum(const c10d::ReduceOp& op) const {
  if (op != c10d::ReduceOp::SUM) {
    reject("unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)");
  }
}

void Arguments::alike(const at::Tensor& like, List tensors) const {
  const auto fail = [&](const std::string& why) { reject(why); };
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].layout() != like.layout()) c10d::assertLayoutMatch(fail, like.layout(), tensors, i);
  }
  c10d::assertTypeAndSizesMatch(fail, tensors, like.options(), like.sizes());
}

void Arguments::same_type(const at::Tensor& like, List tensors) const {
  const auto fail = [&](const std::string& why) { reject(why); };
  for (size_t i = 0; i < tensors.size(); ++i) c10d::assertTypeMatch(fail, like.options(), tensors, i);
}

void Arguments::can_coalesce(List tensors) const {
  not_empty(tensors);
  c10d::assertLayoutMatch([&](const std::string& why) { reject(why); }, tensors);
  for (const auto& tensor : tensors) {
    if (!tensor.options().type_equal(tensors[0].options())) reject("tensors must all have the same type");
    if (tensor.device() != tensors[0].device()) reject("tensors must all be on the same device");
  }
  if (tensors[0].layout() != at::kStrided) reject("unsupported layout");
  dense(tensors);
}

void Arguments::peer(int rank) const {
  if (rank < 0 || rank >= engine_.world_size()) reject(fmt::format("invalid rank: {}", rank));
  if (rank == engine_.rank()) reject(fmt::format("invalid rank: {} is this rank itself", rank));
}

void Arguments::tag(int tag) const {
  if (tag < 0) reject("Tag must be nonnegative");
}

ReduceOp Arguments::reduction(const c10d::ReduceOp& op) const {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::Sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::Avg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::Product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::Min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::Max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::Band;
    case c10d::ReduceOp::BOR:
      return ReduceOp::Bor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::Bxor;
    default:
      reject("this reduce operation is not supported; use SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR");
  }
}

}  // namespace lockstep::c10d_face
