// The rules for -mavx512f -mfma. Compiled for exactly these features; rules.cc checks for them.
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__FMA__)
#error "compile this file with -mavx512f -mfma"
#endif
#define LOCKSTEP_RULES_NAMESPACE avx512
#define LOCKSTEP_RULES_WIDTH 64
#include "optim/rules_impl.h"
#endif
