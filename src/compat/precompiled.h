// Precompiled once, for all folders of src that use LibTorch. Files must still include what they use.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/c10d.h>
