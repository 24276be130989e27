// Precompiled for src/compat and src/comm. Files include what they use all the same.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/c10d.h>
