// How far the front half of a call may be ahead of its back half.
#pragma once

#include <cstddef>

namespace lockstep::hybrid {

// Steps. Several MiB are then on their way to each other machine, so that the link does not idle while a rank
// is not running.
inline constexpr size_t kWindow = 8;

}  // namespace lockstep::hybrid
