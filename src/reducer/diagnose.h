// The words for what goes wrong between a forward pass and the end of its backward pass.
#pragma once

#include <string>
#include <vector>

#include <lockstep/error.h>
#include <lockstep/process_group.h>

namespace lockstep::reducer {

// Some parameters got no gradient, and that was not expected.
UsageError no_gradient(const ProcessGroup& group, const std::vector<std::string>& names, bool static_graph);
// They got none because the module has replaced them.
UsageError replaced_parameters(const ProcessGroup& group, const std::vector<std::string>& names);
// A parameter got one more gradient than it should.
UsageError one_too_many(const ProcessGroup& group, const std::string& name, bool static_graph);
// It was found to be out of reach of the forward's outputs, and got a gradient all the same.
UsageError used_elsewhere(const ProcessGroup& group, const std::string& name);
UsageError with_graph(const ProcessGroup& group, const std::string& name);
UsageError unexpected_layout(const ProcessGroup& group, const std::string& name, bool sparse);
// An exception came out of a backward pass, so that this rank has done only a part of a step.
UsageError interrupted(const ProcessGroup& group);
// A hook threw what is not an exception.
Error no_exception(const ProcessGroup& group);

}  // namespace lockstep::reducer
