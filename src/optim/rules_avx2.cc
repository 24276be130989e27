// The rules for -mavx2 -mfma. Compiled for exactly these features; rules.cc checks for them.
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__FMA__)
#error "compile this file with -mavx2 -mfma"
#endif
#define LOCKSTEP_RULES_NAMESPACE avx2
#define LOCKSTEP_RULES_WIDTH 32
#include "optim/rules_impl.h"
#endif
