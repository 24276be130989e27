// The kernels for every CPU of the architecture that the build is for.
#define LOCKSTEP_KERNELS_NAMESPACE plain
#define LOCKSTEP_KERNELS_WIDTH 16
#include "shm/kernels_impl.h"
