// Includes all of lockstep (except jit.h) and LibTorch's umbrella header, since every program needs both.
#pragma once

#include <lockstep/cxx20.h>
#if __cplusplus >= 201709L  // cxx20.h has reported an older standard; without this, hundreds of errors follow

#include <ATen/core/ivalue.h>  // first: in C++20, clang rejects other headers of LibTorch 1 without it
#include <torch/torch.h>

#include <lockstep/c10d.h>
#include <lockstep/comm_hook.h>
#include <lockstep/data_loader.h>
#include <lockstep/data_parallel.h>
#include <lockstep/ddp.h>
#include <lockstep/ddp_stats.h>
#include <lockstep/decide.h>
#include <lockstep/error.h>
#include <lockstep/metrics.h>
#include <lockstep/process_group.h>
#include <lockstep/progress.h>
#include <lockstep/sampler.h>
#include <lockstep/schedule.h>
#include <lockstep/sharded_optimizer.h>
#include <lockstep/snapshot.h>
#include <lockstep/spawn.h>
#include <lockstep/sync_batch_norm.h>
#include <lockstep/tensors_in.h>
#include <lockstep/train.h>
#include <lockstep/work.h>
#endif
