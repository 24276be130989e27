// The next thing to do about a rank that has ended while others wait for it.
#pragma once

namespace lockstep::base {

inline constexpr const char* kItEndedFirst = "look at the output of that rank: it ended first";
inline constexpr const char* kItMadeFewerSteps =
    "it made fewer steps: decide together when to stop (lockstep::all_agree), or use lockstep::Join";
// Where nobody can tell which of the two it is.
inline constexpr const char* kItEndedFirstOrMadeFewerSteps =
    "look at the output of that rank: it ended first. If it ended without an error, it made fewer steps: "
    "decide "
    "together when to stop (lockstep::all_agree), or use lockstep::Join";

}  // namespace lockstep::base
