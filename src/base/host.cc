#include "base/host.h"

#include <filesystem>
#include <fstream>
#include <limits.h>
#include <unistd.h>

#include "base/env.h"

namespace lockstep::base {

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown-host";
}

std::string kernel_identity() {
  std::string boot_id = "no-boot-id:" + host_name();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return boot_id;
}

std::string network_identity() {
  std::error_code no_proc;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", no_proc);
  return kernel_identity() + "/" + network.string();
}

std::string machine_identity() {
  const auto part = env_string("LOCKSTEP_MACHINE");
  return part ? network_identity() + "/" + *part : network_identity();
}

}  // namespace lockstep::base
