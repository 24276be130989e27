// The kernels for AVX2 with F16C. Compiled for exactly these features; kernels.cc checks for them.
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mf16c"
#endif
#define LOCKSTEP_KERNELS_NAMESPACE avx2
#define LOCKSTEP_KERNELS_WIDTH 32
#include "shm/kernels_impl.h"
#endif
