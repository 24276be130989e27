// What `lockstep plan` prints.
#pragma once

#include <string>

#include "plan/constants.h"
#include "plan/job.h"

namespace lockstep::cli {

// The prediction for one job, what it costs most, other ways of running it, and limits.
std::string plan_text(const plan::Constants& constants, const plan::Job& job, bool colour);
std::string plan_json(const plan::Constants& constants, const plan::Job& job);

// 64 to 4096 ranks, each with the best bucket size.
std::string plan_table_text(const plan::Constants& constants, const plan::Job& job);
std::string plan_table_json(const plan::Constants& constants, const plan::Job& job);

}  // namespace lockstep::cli
