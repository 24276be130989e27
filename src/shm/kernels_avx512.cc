// The kernels for AVX-512 F, BW, VL and DQ. Compiled for exactly these features; kernels.cc checks for them.
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "compile this file with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c"
#endif
#define LOCKSTEP_KERNELS_NAMESPACE avx512
#define LOCKSTEP_KERNELS_WIDTH 64
#include "shm/kernels_impl.h"
#endif
