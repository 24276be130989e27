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
       .evidence = static_graph
                       ? "in the first pass they got one, and with static_graph every pass must repeat it"
                       : "every parameter that requires a gradient must contribute to the loss",
       .hint = static_graph ? "do not set static_graph for models whose graph changes"
                            : "use the outputs that depend on them in the loss, freeze them "
                              "(requires_grad_(false)) on all ranks, or set find_unused_parameters"}));
}

UsageError replaced_parameters(const ProcessGroup& group, const std::vector<std::string>& names) {
  return UsageError(
      base::compose({.what = fmt::format("{} got no gradient in this backward pass", listed(names)),
                     .where = where(group),
                     .evidence = fmt::format("{} of the module {} been replaced since it was wrapped",
                                             listed(names), names.size() == 1 ? "has" : "have"),
                     .hint = "call ddp.refresh() after changing the module, and create a new optimizer"}));
}

UsageError one_too_many(const ProcessGroup& group, const std::string& name, bool static_graph) {
  return UsageError(base::compose(
      {.what = fmt::format("'{}' got more gradients in this backward pass than expected", name),
       .where = where(group),
       .evidence = static_graph
                       ? "in the first pass it got fewer, and with static_graph every pass must repeat it"
                       : "a gradient is averaged as soon as it is ready, so there can be only one",
       .hint = static_graph ? "do not set static_graph for models whose graph changes"
                            : "a backward pass inside the backward pass (activation checkpointing) "
                              "produces several: set static_graph"}));
}

UsageError used_elsewhere(const ProcessGroup& group, const std::string& name) {
  return UsageError(base::compose(
      {.what = fmt::format("'{}' got a gradient although the outputs of forward do not depend on it", name),
       .where = where(group),
       .evidence = "find_unused_parameters considered it unused, and its bucket has already been launched",
       .hint = "return everything that the loss depends on from forward; call the module as ddp(x), not as "
               "ddp->forward(x); for your own output types, define visit_tensors (lockstep/tensors_in.h)"}));
}

UsageError with_graph(const ProcessGroup& group, const std::string& name) {
  return UsageError(base::compose(
      {.what = fmt::format("the gradient of '{}' has its own graph", name),
       .where = where(group),
       .evidence = "backward was called with create_graph, and the average over ranks cannot be "
                   "differentiated again",
       .hint =
           "compute second derivatives of a part of the loss with torch::autograd::grad, or under no_sync"}));
}

UsageError unexpected_layout(const ProcessGroup& group, const std::string& name, bool sparse) {
  return UsageError(base::compose(
      {.what = fmt::format("'{}' got a {} gradient", name, sparse ? "sparse" : "dense"),
       .where = where(group),
       .evidence = fmt::format("in the first pass, and therefore in the plan of all ranks, it was {}",
                               sparse ? "dense" : "sparse"),
       .hint = "a parameter's gradients must be always sparse or always dense, on all ranks"}));
}

UsageError interrupted(const ProcessGroup& group) {
  return UsageError(base::compose(
      {.what = "the last backward pass did not complete",
       .where = where(group),
       .evidence = "it threw an exception, so this rank has averaged only some of its gradients",
       .hint = "let the exception end the process: the ranks cannot be synchronised again"}));
}

Error no_exception(const ProcessGroup& group) {
  return Error(base::compose(
      {.what = "an exception that is not a std::exception was thrown during a backward pass",
       .where = where(group),
       .hint = "check the communication hook: it must throw classes that derive from std::exception"}));
}

UsageError no_averages_to_update(const ProcessGroup& group) {
  return UsageError(base::compose(
      {.what = "a sharded optimizer has no averages to step with",
       .where = where(group),
       .evidence = "the last backward pass was under no_sync; with a communication hook, or with "
                   "average_gradients, gradients are averaged in the pass",
       .hint = "make the last pass before step() a synchronised one, on all ranks"}));
}

UsageError no_pass_to_update(const ProcessGroup& group) {
  return UsageError(base::compose(
      {.what = "a sharded optimizer has no gradients to step with",
       .where = where(group),
       .evidence = "there was no synchronised backward pass since the optimizer was constructed",
       .hint = "call backward() outside of no_sync() before step(), on all ranks"}));
}

}  // namespace lockstep::reducer
