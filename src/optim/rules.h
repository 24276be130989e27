// The update rules of optimizers, one pass over memory each: pure arithmetic on floats.
//
// They compute the bits of LibTorch's optimizers, which apply one tensor operation after the other: the same
// operations in the same order, each rounded to a float. Where LibTorch's kernels use fused multiply-add,
// which depends on the CPU, so do these (`fused`).
//
// Each rule exists once per instruction set, with the same results. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::optim {

enum class Rule : uint8_t { Sgd, Adam, Adagrad, RmsProp };

// Numbers of one step, rounded as LibTorch rounds them. Each rule uses its part.
struct Step {
  Rule rule = Rule::Sgd;

  // The gradient g becomes g * clip, then g + decay * p. Or the parameter p becomes p * shrink first (AdamW).
  bool clips = false, decays = false, shrinks = false;
  float clip = 1, decay = 0, shrink = 1;

  // Sgd: b = momentum * b + undamped * g, the first time b = g; then p + scale * (nesterov ? g + momentum * b
  // : b). RmsProp: b = momentum * b + g / average, p + scale * b.
  bool has_momentum = false, first = false, nesterov = false;
  float momentum = 0, undamped = 1;

  // Adam: two moving averages a, of g and of g * g, with these weights of their past and of the present.
  // RmsProp: of g * g, and if `centered` also of g.
  bool keeps_largest = false, centered = false;
  float past1 = 0, present1 = 0, past2 = 0, present2 = 0;
  float root_correction = 1;  // Adam: the root of the average is divided by it
  float epsilon = 0;

  float scale = 0;  // of what is added to the parameter: the negative step size
};

// A parameter's state, as arrays of its elements. By rule:
//   Sgd      0 momentum
//   Adam     0 average of g, 1 average of g * g, 2 the largest of these (keeps_largest)
//   Adagrad  0 sum of g * g
//   RmsProp  0 average of g * g, 1 momentum, 2 average of g (centered)
inline constexpr int kStates = 3;

// Replaces the gradients in `values` by the new parameters, and updates the state. `parameters`: the present
// ones; not `values`. Arrays that the rule does not use may be null.
using Update = void (*)(const Step& step, float* values, const float* parameters,
                        float* const states[kStates], size_t count);

enum class Isa { Plain, Avx2, Avx512 };
Isa best_isa();  // of this CPU

// If this CPU lacks the instruction set, the best one that it has is used.
Update find_update(Rule rule, bool fused, Isa isa = best_isa());

// The rules of one instruction set, for find_update() only: on a CPU without it, they crash.
namespace plain {
Update find(Rule rule, bool fused);
}
namespace avx2 {
Update find(Rule rule, bool fused);
}
namespace avx512 {
Update find(Rule rule, bool fused);
}

}  // namespace lockstep::optim
