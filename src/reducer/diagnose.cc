#include "reducer/diagnose.h"

#include <fmt/format.h>

#include "base/error_text.h"
#include "base/host.h"

namespace lockstep::reducer {

namespace {

std::string where(const ProcessGroup& group) {
  return fmt::format("rank {}/{}, host {}", group.rank(), group.world_size(), base::host_name());
}

// The first few; a model may have thousands.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", names[i]);
  }
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

}  // namespace

UsageError no_gradient(const ProcessGroup& group, const std::vector<std::string>& names, bool static_graph) {
  return UsageError(base::compose(
      {.what = fmt::format("{} got no gradient in this backward pass", listed(names)),
       .where = where(group),
       .evidence = static_graph ? "in the first pass they got one, and the graph was said to be static"
                                : "every parameter that requires a gradient must take part in the loss",
       .hint = static_graph ? "leave static_graph off for models whose graph changes"
                            : "use the outputs that depend on them in the loss, freeze them "
                              "(requires_grad_(false)) on all ranks, or set find_unused_parameters"}));
}

UsageError replaced_parameters(const ProcessGroup& group, const std::vector<std::string>& names) {
  return UsageError(base::compose(
      {.what = fmt::format("{} got no gradient in this backward pass", listed(names)),
       .where = where(group),
       .evidence = fmt::format("{} of the module {} now than when it was wrapped", listed(names),
                               names.size() == 1 ? "is another tensor" : "are other tensors"),
       .hint = "call ddp.refresh() after changing the module, and make a new optimizer"}));
}

UsageError one_too_many(const ProcessGroup& group, const std::string& name, bool static_graph) {
  return UsageError(base::compose(
      {.what = fmt::format("'{}' got more gradients in this backward pass than expected", name),
       .where = where(group),
       .evidence = static_graph ? "in the first pass it got fewer, and the graph was said to be static"
                                : "a gradient is averaged as soon as it is there, so there can be only one",
       .hint = static_graph ? "leave static_graph off for models whose graph changes"
                            : "a backward pass inside the backward pass (activation checkpointing) makes "
                              "several: set static_graph"}));
}

UsageError used_elsewhere(const ProcessGroup& group, const std::string& name) {
  return UsageError(base::compose(
      {.what = fmt::format("'{}' got a gradient although the outputs of forward do not depend on it", name),
       .where = where(group),
       .evidence = "with find_unused_parameters it was taken for unused, and its bucket is on its way",
       .hint = "return everything that the loss depends on from forward; call the module as ddp(x) wherever "
               "else it is called as ddp->forward(x); for output types of your own, write visit_tensors "
               "(lockstep/tensors_in.h)"}));
}

UsageError with_graph(const ProcessGroup& group, const std::string& name) {
  return UsageError(base::compose(
      {.what = fmt::format("the gradient of '{}' carries a graph of its own", name),
       .where = where(group),
       .evidence = "backward was called with create_graph, and the average over ranks cannot be "
                   "differentiated again",
       .hint =
           "take second derivatives of a part of the loss with torch::autograd::grad, or under no_sync"}));
}

UsageError unexpected_layout(const ProcessGroup& group, const std::string& name, bool sparse) {
  return UsageError(
      base::compose({.what = fmt::format("'{}' got a {} gradient", name, sparse ? "sparse" : "dense"),
                     .where = where(group),
                     .evidence = fmt::format("in the first pass, and so in the plan of all ranks, it is {}",
                                             sparse ? "dense" : "sparse"),
                     .hint = "a parameter's gradients must be of one kind, on all ranks"}));
}

UsageError interrupted(const ProcessGroup& group) {
  return UsageError(base::compose(
      {.what = "the last backward pass did not come to its end",
       .where = where(group),
       .evidence = "an exception came out of it, so this rank has averaged a part of its gradients only",
       .hint = "let the exception end the process: the ranks cannot be brought into step again"}));
}

Error no_exception(const ProcessGroup& group) {
  return Error(base::compose(
      {.what = "something was thrown during a backward pass that is no std::exception",
       .where = where(group),
       .hint = "look at the communication hook, and have it throw classes that derive from std::exception"}));
}

}  // namespace lockstep::reducer
