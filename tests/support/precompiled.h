// Precompiled for all tests that use LibTorch: <torch/torch.h> alone costs 20 s a file.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>
