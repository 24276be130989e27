// Which machine this is.
#pragma once

#include <string>

namespace lockstep::base {

std::string host_name();

// Equal for two processes exactly when they run under one kernel and in one network namespace, so that
// loopback connects them. Containers and namespaces that only share the hardware count as different machines.
std::string machine_identity();

}  // namespace lockstep::base
