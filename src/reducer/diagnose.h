// The errors that can occur between a forward pass and the end of its backward pass.
#pragma once

#include <string>
#include <vector>

#include <lockstep/error.h>
#include <lockstep/process_group.h>

namespace lockstep::reducer {

// Some parameters unexpectedly got no gradient.
UsageError no_gradient(const ProcessGroup& group, const std::vector<std::string>& names, bool static_graph);
// Some parameters got no gradient because the module has replaced them.
UsageError replaced_parameters(const ProcessGroup& group, const std::vector<std::string>& names);
// A parameter got more gradients than expected.
UsageError one_too_many(const ProcessGroup& group, const std::string& name, bool static_graph);
// A parameter got a gradient although the outputs of forward do not depend on it.
UsageError used_elsewhere(const ProcessGroup& group, const std::string& name);
UsageError with_graph(const ProcessGroup& group, const std::string& name);
UsageError unexpected_layout(const ProcessGroup& group, const std::string& name, bool sparse);
// The last backward pass threw an exception, so this rank has done only part of a step.
UsageError interrupted(const ProcessGroup& group);
// An optimizer that takes gradients from the buckets has no gradients to take.
UsageError no_averages_to_update(const ProcessGroup& group);
UsageError no_pass_to_update(const ProcessGroup& group);
// A hook threw something that is not a std::exception.
Error no_exception(const ProcessGroup& group);

}  // namespace lockstep::reducer
