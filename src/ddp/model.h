// Checks that all ranks have the same model: names, shapes, layouts and types, but not values.
#pragma once

#include <string>
#include <vector>

#include <lockstep/ddp.h>

namespace lockstep::ddp {

using detail::NamedTensors;

// One line for each parameter and buffer, and one for the options: what must be the same on all ranks.
std::vector<std::string> describe_model(const NamedTensors& parameters, const NamedTensors& buffers,
                                        const DdpOptions& options);

// All ranks must call it; it blocks. Throws MismatchError with the first difference, the same on all ranks.
void check_same_model(ProcessGroup& group, const std::vector<std::string>& lines);

}  // namespace lockstep::ddp
