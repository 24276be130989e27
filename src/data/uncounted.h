// For what saves a sampler's state.
#pragma once

#include <lockstep/sampler.h>

namespace lockstep::data {

// Warns, once for each sampler, if its position in the epoch is not what was trained on: samples were handed
// to a loader's workers and advance() is not called, or they reach the loop out of order.
void warn_if_uncounted(const DistributedSampler& sampler);

}  // namespace lockstep::data
