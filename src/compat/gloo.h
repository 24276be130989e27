// Makes LibTorch's Gloo backend.
#pragma once

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/c10d.h>

namespace lockstep::compat {

bool has_gloo();

// Collective over the ranks that share `store`. `address`: the local address that peers connect to.
// Throws what Gloo throws.
c10::intrusive_ptr<c10d_backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int world_size, std::chrono::milliseconds timeout,
                                           const std::string& address);

}  // namespace lockstep::compat
