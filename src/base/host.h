// Identifies this machine.
#pragma once

#include <string>

namespace lockstep::base {

std::string host_name();

// Equal for two processes if and only if they share a kernel, and with it the CPUs.
std::string kernel_identity();
// Equal for two processes if and only if they share a kernel and a network namespace, so that they can
// connect over loopback. Containers and namespaces that share only the hardware count as different machines.
std::string network_identity();
// The same, but processes with different values of LOCKSTEP_MACHINE count as being on different machines,
// too.
std::string machine_identity();

}  // namespace lockstep::base
