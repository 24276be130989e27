#include "ddp/model.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/control.h"
#include "ddp/digest.h"

namespace lockstep {

detail::ModelView detail::view_of(const std::shared_ptr<torch::nn::Module>& module) {
  if (!module)
    throw UsageError("DistributedDataParallel was given no module (a null pointer or an empty holder)");
  ModelView view;
  view.present_parameters = [module] {
    NamedTensors parameters;
    for (const auto& parameter : module->named_parameters()) {
      parameters.emplace_back(parameter.key(), parameter.value());
    }
    return parameters;
  };
  view.parameters = view.present_parameters();
  view.buffers = [module] {
    NamedTensors buffers;
    for (const auto& buffer : module->named_buffers()) buffers.emplace_back(buffer.key(), buffer.value());
    return buffers;
  };
  view.is_training = [module] { return module->is_training(); };
  const auto look_at = [&](const std::string& weight, const torch::nn::Module& part) {
    const auto* embedding = part.as<torch::nn::EmbeddingImpl>();
    const auto* bag = part.as<torch::nn::EmbeddingBagImpl>();
    if ((embedding != nullptr && embedding->options.sparse()) || (bag != nullptr && bag->options.sparse())) {
      view.sparse.push_back(weight);
    }
  };
  // The module itself is not in named_modules, which cannot include a module that no shared_ptr owns.
  look_at("weight", *module);
  for (const auto& child : module->named_modules("", false)) look_at(child.key() + ".weight", *child.value());
  return view;
}

namespace ddp {

namespace {

std::string describe(const std::string& what, const std::string& name, const at::Tensor& tensor) {
  return fmt::format("{} '{}': {} [{}], strides [{}], {}{}", what, name, c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), fmt::join(tensor.strides(), ", "),
                     c10::DeviceTypeName(tensor.device().type(), true),
                     tensor.requires_grad() ? ", requires a gradient" : "");
}

// The lines of every rank.
std::vector<std::vector<std::string>> gather_lines(ProcessGroup& group, const std::string& text) {
  std::vector<std::vector<std::string>> all;
  for (const auto& theirs : comm::control_of(group).gather_texts("model check, all lines", text)) {
    auto& lines = all.emplace_back();
    for (size_t begin = 0; begin < theirs.size();) {
      const auto end = theirs.find('\n', begin);
      lines.push_back(theirs.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return all;
}

}  // namespace

std::vector<std::string> describe_model(const NamedTensors& parameters, const NamedTensors& buffers,
                                        const DdpOptions& options) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : parameters) lines.push_back(describe("parameter", name, tensor));
  for (const auto& [name, tensor] : buffers) {
    lines.push_back(tensor.defined() ? describe("buffer", name, tensor)
                                     : fmt::format("buffer '{}': undefined", name));
  }
  lines.push_back(fmt::format(
      "options: bucket_cap_mb {}, first_bucket_mb {}, broadcast_buffers {}, find_unused_parameters {}, "
      "static_graph {}, verify_every {}, checks {}, share_parameters {}",
      options.bucket_cap_mb, options.first_bucket_mb, options.broadcast_buffers,
      options.find_unused_parameters, options.static_graph, options.verify_every, options.checks,
      options.share_parameters));
  return lines;
}

void check_same_model(ProcessGroup& group, const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + '\n';
  const auto digests = comm::control_of(group).gather("model check", digest(text.data(), text.size()));
  if (std::equal(digests.begin() + 1, digests.end(), digests.begin())) return;

  const auto all = gather_lines(group, text);
  const auto& first = all.front();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto& theirs = all[rank];
    if (theirs == first) continue;
    const auto [here, there] = std::mismatch(first.begin(), first.end(), theirs.begin(), theirs.end());
    throw MismatchError(base::compose(
        {.what = "the ranks do not have the same model",
         .where = fmt::format("rank {}/{}", group.rank(), group.world_size()),
         .evidence =
             fmt::format("rank 0 has {}; rank {} has {}", here == first.end() ? "nothing more" : *here, rank,
                         there == theirs.end() ? "nothing more" : *there),
         .hint = "build the model with the same options on all ranks, and pass the same options to "
                 "DistributedDataParallel"}));
  }
}

}  // namespace ddp

}  // namespace lockstep
