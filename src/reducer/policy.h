// What a model's graph is known to do, as the user has declared it: chosen once, when a reducer is made.
#pragma once

namespace lockstep::reducer {

struct GraphPolicy {
  // Parameters may get no gradient in a pass, and a walk from the outputs tells early which.
  bool may_leave_out;
  // The first pass shows how often each parameter is used, and every later one must repeat that. Parameters
  // that no rank uses get no place in a bucket.
  bool repeats_first_pass;
  // The plan follows the order in which gradients became ready in the first pass.
  bool plans_by_first_pass;
};

// Every parameter gets one gradient in every pass.
inline constexpr GraphPolicy kCompleteGraph = {
    .may_leave_out = false, .repeats_first_pass = false, .plans_by_first_pass = true};
// DdpOptions::find_unused_parameters. The first pass may not have seen all parameters.
inline constexpr GraphPolicy kChangingGraph = {
    .may_leave_out = true, .repeats_first_pass = false, .plans_by_first_pass = false};
// DdpOptions::static_graph
inline constexpr GraphPolicy kStaticGraph = {
    .may_leave_out = false, .repeats_first_pass = true, .plans_by_first_pass = true};

}  // namespace lockstep::reducer
