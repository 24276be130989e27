#include "reducer/flight.h"

#include <algorithm>
#include <fmt/format.h>

#include <ATen/ATen.h>

#include "base/error_text.h"
#include "comm/purpose.h"

namespace lockstep::reducer {

namespace {

GradBucket describe(const Bucket& bucket, const Flight::Terms& terms) {
  GradBucket described{.index = terms.index,
                       .is_last = terms.is_last,
                       .buffer = bucket.flat(),
                       .takes_part = terms.takes_part,
                       .participants = terms.participants};
  for (size_t slot = 0; slot < bucket.members().size(); ++slot) {
    const auto& parameter = terms.parameters[bucket.members()[slot]];
    described.gradients.push_back(bucket.view(slot));
    described.parameters.push_back(parameter.tensor);
    described.names.push_back(parameter.name);
  }
  return described;
}

}  // namespace

// "DDP gradients, bucket 0 (fc.weight, fc.bias, …)"
std::string Flight::purpose() const {
  constexpr size_t kShown = 2;
  std::string names;
  const auto& members = bucket_.members();
  for (size_t slot = 0; slot < std::min(members.size(), kShown); ++slot) {
    names += (slot == 0 ? "" : ", ") + terms_.parameters[members[slot]].name;
  }
  return fmt::format("DDP gradients, bucket {} ({}{})", terms_.index, names,
                     members.size() > kShown ? ", …" : "");
}

Flight::Flight(Bucket& bucket, const Terms& terms) : bucket_(bucket), terms_(terms) {
  const auto describe_purpose = [this] { return purpose(); };
  const comm::Purpose labelled(describe_purpose);
  if (bucket_.sparse()) {
    const auto& parameter = terms_.parameters[bucket_.members().front()].tensor;
    sparse_.emplace(terms_.group, parameter.grad(), parameter);
  } else if (terms_.hook) {
    auto described = describe(bucket_, terms_);
    result_ = terms_.hook(described, terms_.group);
  } else {
    work_ = terms_.group.all_reduce_async(bucket_.flat(), averages() ? ReduceOp::Avg : ReduceOp::Sum);
  }
}

// By the group itself.
bool Flight::averages() const { return !terms_.scaled && terms_.participants == terms_.group.world_size(); }

bool Flight::is_done() const { return work_.is_done(); }

at::Tensor Flight::finish() {
  const auto describe_purpose = [this] { return purpose(); };
  const comm::Purpose labelled(describe_purpose);
  if (sparse_) return sparse_->finish(terms_.participants);
  if (!result_) {
    work_.wait();
    if (!averages() && !terms_.scaled) bucket_.flat().div_(terms_.participants);
    return {};
  }
  const auto averaged = result_->wait();
  auto& flat = bucket_.flat();
  if (averaged.numel() != flat.numel()) {
    throw UsageError(base::compose({.what = "the communication hook answered with a tensor of another size",
                                    .evidence = fmt::format("bucket {} has {} elements, the answer {}",
                                                            terms_.index, flat.numel(), averaged.numel()),
                                    .hint = "a hook answers with a tensor like its bucket's buffer"}));
  }
  if (averaged.data_ptr() != flat.data_ptr()) flat.copy_(averaged.view({-1}));
  return {};
}

}  // namespace lockstep::reducer
