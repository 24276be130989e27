// Whether all ranks hold the same model: names, shapes, layouts and types, not values.
#pragma once

#include <string>
#include <vector>

#include <lockstep/ddp.h>

namespace lockstep::ddp {

using detail::NamedTensors;

// One line for each parameter and buffer, and one for the options: what must be the same everywhere.
std::vector<std::string> describe_model(const NamedTensors& parameters, const NamedTensors& buffers,
                                        const DdpOptions& options);

// All ranks must call it. Throws MismatchError, the same on all ranks, with the first difference in words.
void check_same_model(ProcessGroup& group, const std::vector<std::string>& lines);

}  // namespace lockstep::ddp
