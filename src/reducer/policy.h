// How the graph of a model may behave, as the user has declared it. Chosen once, when a reducer is created.
#pragma once

namespace lockstep::reducer {

struct GraphPolicy {
  // Parameters may get no gradient in a pass; a walk from the outputs finds them early.
  bool may_leave_out;
  // The first pass shows how often each parameter is used, and every later pass must repeat it. Parameters
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
