// A check for code that saves the state of a sampler.
#pragma once

#include <lockstep/sampler.h>

namespace lockstep::data {

// Logs a warning, once per sampler, if its position does not match the samples trained on: workers have
// requested samples ahead and the program does not call advance(), or the loop receives batches out of order.
void warn_if_uncounted(const DistributedSampler& sampler);

}  // namespace lockstep::data
