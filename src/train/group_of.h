// Checks the group passed to a function of the public API. `call`: its name, for the error.
#pragma once

#include <memory>
#include <string>

#include <lockstep/error.h>
#include <lockstep/process_group.h>

namespace lockstep::train {

inline ProcessGroup& group_of(const std::shared_ptr<ProcessGroup>& group, const char* call) {
  if (!group) throw UsageError(std::string(call) + " was given no process group (a null pointer)");
  return *group;
}

}  // namespace lockstep::train
