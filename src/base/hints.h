// Hints that several errors share.
#pragma once

namespace lockstep::base {

inline constexpr const char* kSameCalls =
    "all ranks must make the same calls in the same order, with tensors of the same size and type";
inline constexpr const char* kLate =
    "look at what the absent ranks are doing; all ranks must make the same calls in the same order. A slow "
    "but healthy job needs a longer timeout";

// For a rank that ended while other ranks were waiting for it.
inline constexpr const char* kItEndedFirst = "look at the output of that rank: it ended first";
inline constexpr const char* kItMadeFewerSteps =
    "it made fewer steps: decide together when to stop (all_agree), or use Join";
// When it is unknown which of the two applies.
inline constexpr const char* kItEndedFirstOrMadeFewerSteps =
    "look at the output of that rank: it ended first. If it ended without an error, it made fewer steps: "
    "decide together when to stop (all_agree), or use Join";

}  // namespace lockstep::base
