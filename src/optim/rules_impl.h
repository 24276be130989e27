// The rules for one instruction set, which the including file selects with LOCKSTEP_RULES_NAMESPACE and
// LOCKSTEP_RULES_WIDTH (bytes of a register).
//
// Everything is in an unnamed namespace: functions with external linkage would be merged with those of the
// other instruction sets. Therefore nothing here may use the standard library's inline functions. Compile it
// with -ffp-contract=off.

#include "optim/rules.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace lockstep::optim::LOCKSTEP_RULES_NAMESPACE {

namespace {

typedef float Lanes __attribute__((vector_size(LOCKSTEP_RULES_WIDTH)));
typedef float LanesInMemory __attribute__((vector_size(LOCKSTEP_RULES_WIDTH), aligned(4), may_alias));
constexpr size_t kLanes = LOCKSTEP_RULES_WIDTH / sizeof(float);

Lanes load(const float* from) { return *reinterpret_cast<const LanesInMemory*>(from); }
void store(float* to, Lanes value) { *reinterpret_cast<LanesInMemory*>(to) = value; }

Lanes root(Lanes value) {
#if defined(__AVX512F__)
  return Lanes(_mm512_maskz_sqrt_ps(0xffff, __m512(value)));
#elif defined(__AVX2__)
  return Lanes(_mm256_sqrt_ps(__m256(value)));
#elif defined(__SSE2__)
  return Lanes(_mm_sqrt_ps(__m128(value)));
#else
  for (size_t i = 0; i < kLanes; ++i) value[i] = __builtin_sqrtf(value[i]);
  return value;
#endif
}

Lanes fused_multiply_add(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return Lanes(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__FMA__)
  return Lanes(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#else
  for (size_t i = 0; i < kLanes; ++i) a[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return a;
#endif
}

// NaN if either is.
Lanes larger(Lanes a, Lanes b) { return ((a > b) | (a != a)) ? a : b; }

// The operations of LibTorch's tensors.
template <bool kFused>
struct Ops {
  // self.add(other, alpha)
  static Lanes add(Lanes self, Lanes other, float alpha) {
    if constexpr (kFused) return fused_multiply_add(other, Lanes{} + alpha, self);
    return self + other * alpha;
  }
  // self.addcmul(a, b, value)
  static Lanes addcmul(Lanes self, Lanes a, Lanes b, float value) {
    if constexpr (kFused) return fused_multiply_add(a * value, b, self);
    return self + (a * value) * b;
  }
  // self.addcdiv(a, b, value)
  static Lanes addcdiv(Lanes self, Lanes a, Lanes b, float value) { return self + (a * value) / b; }
};

struct Element {
  Lanes gradient, parameter;
  Lanes state[kStates];
};

template <bool kFused>
struct Sgd {
  static Lanes apply(const Step& step, Element& at) {
    using On = Ops<kFused>;
    auto change = at.gradient;
    if (step.has_momentum) {
      auto& moving = at.state[0];
      moving = step.first ? change : On::add(moving * step.momentum, change, step.undamped);
      change = step.nesterov ? On::add(change, moving, step.momentum) : moving;
    }
    return On::add(at.parameter, change, step.scale);
  }
};

template <bool kFused>
struct Adam {
  static Lanes apply(const Step& step, Element& at) {
    using On = Ops<kFused>;
    auto& [mean, square, largest] = at.state;
    mean = On::add(mean * step.past1, at.gradient, step.present1);
    square = On::addcmul(square * step.past2, at.gradient, at.gradient, step.present2);
    if (step.keeps_largest) largest = larger(largest, square);
    const auto divisor = root(step.keeps_largest ? largest : square) / step.root_correction + step.epsilon;
    return On::addcdiv(at.parameter, mean, divisor, step.scale);
  }
};

template <bool kFused>
struct Adagrad {
  static Lanes apply(const Step& step, Element& at) {
    using On = Ops<kFused>;
    auto& sum = at.state[0];
    sum = On::addcmul(sum, at.gradient, at.gradient, 1);
    return On::addcdiv(at.parameter, at.gradient, root(sum) + step.epsilon, step.scale);
  }
};

template <bool kFused>
struct RmsProp {
  static Lanes apply(const Step& step, Element& at) {
    using On = Ops<kFused>;
    auto& [square, moving, mean] = at.state;
    square = On::addcmul(square * step.past2, at.gradient, at.gradient, step.present2);
    auto average = square;
    if (step.centered) {
      mean = On::add(mean * step.past2, at.gradient, step.present2);
      average = On::addcmul(square, mean, mean, -1);
    }
    average = root(average) + step.epsilon;
    if (!step.has_momentum) return On::addcdiv(at.parameter, at.gradient, average, step.scale);
    moving = On::addcdiv(moving * step.momentum, at.gradient, average, 1);
    return On::add(at.parameter, moving, step.scale);
  }
};

template <class Apply, bool kFused>
Lanes updated(const Step& step, Element& at) {
  using On = Ops<kFused>;
  if (step.clips) at.gradient = at.gradient * step.clip;
  if (step.shrinks) at.parameter = at.parameter * step.shrink;
  if (step.decays) at.gradient = On::add(at.gradient, at.parameter, step.decay);
  return Apply::apply(step, at);
}

// The last elements, fewer than a register has.
void load_some(Lanes& lanes, const float* from, size_t count) {
  lanes = Lanes{};
  for (size_t i = 0; i < count; ++i) lanes[i] = from[i];
}
void store_some(float* to, Lanes lanes, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = lanes[i];
}

template <template <bool> class Apply, bool kFused>
void update(const Step& step, float* values, const float* parameters, float* const states[kStates],
            size_t count) {
  const Step local = step;  // not reloaded after each store
  float* const state[kStates] = {states[0], states[1], states[2]};
  size_t at = 0;
  for (; count - at >= kLanes; at += kLanes) {
    Element element{load(values + at), load(parameters + at), {}};
    for (int i = 0; i < kStates; ++i) {
      if (state[i] != nullptr) element.state[i] = load(state[i] + at);
    }
    store(values + at, updated<Apply<kFused>, kFused>(local, element));
    for (int i = 0; i < kStates; ++i) {
      if (state[i] != nullptr) store(state[i] + at, element.state[i]);
    }
  }
  const size_t rest = count - at;
  if (rest == 0) return;
  Element element{};
  load_some(element.gradient, values + at, rest);
  load_some(element.parameter, parameters + at, rest);
  for (int i = 0; i < kStates; ++i) {
    if (state[i] != nullptr) load_some(element.state[i], state[i] + at, rest);
  }
  store_some(values + at, updated<Apply<kFused>, kFused>(local, element), rest);
  for (int i = 0; i < kStates; ++i) {
    if (state[i] != nullptr) store_some(state[i] + at, element.state[i], rest);
  }
}

template <template <bool> class Apply>
Update choose(bool fused) {
  return fused ? update<Apply, true> : update<Apply, false>;
}

}  // namespace

Update find(Rule rule, bool fused) {
  switch (rule) {
    case Rule::Sgd:
      return choose<Sgd>(fused);
    case Rule::Adam:
      return choose<Adam>(fused);
    case Rule::Adagrad:
      return choose<Adagrad>(fused);
    case Rule::RmsProp:
      return choose<RmsProp>(fused);
  }
  return nullptr;
}

}  // namespace lockstep::optim::LOCKSTEP_RULES_NAMESPACE
