// Everything of lockstep. Together with LibTorch's own umbrella header, since every program needs both.
#pragma once

#include <torch/torch.h>

#include <lockstep/c10d.h>
#include <lockstep/error.h>
#include <lockstep/process_group.h>
#include <lockstep/spawn.h>
#include <lockstep/work.h>
