// Creates LibTorch's Gloo backend, and provides what c10d's interface does not.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/c10d.h>

namespace lockstep::gloo {

bool has_gloo();

// All ranks that share `store` must call it; it blocks until they are connected. `address`: the local address
// to which peers connect. Throws Gloo's exceptions.
c10::intrusive_ptr<c10d_backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int world_size, std::chrono::milliseconds timeout,
                                           const std::string& address);

bool is_gloo(const c10d_backend& backend);

// Gloo matches the ranks' messages by a tag that counts their collectives. Adds 24 bits to the tag of the
// next collective, so that it is matched only with calls that have the same bits. `gloo` must be a Gloo
// backend.
void mark_next_collective(c10d_backend& gloo, uint32_t bits);

}  // namespace lockstep::gloo
