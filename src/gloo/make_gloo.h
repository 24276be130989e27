// Makes LibTorch's Gloo backend, and what can be done to it beyond c10d's interface.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/c10d.h>

namespace lockstep::gloo {

bool has_gloo();

// Collective over the ranks that share `store`. `address`: the local address that peers connect to.
// Throws what Gloo throws.
c10::intrusive_ptr<c10d_backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int world_size, std::chrono::milliseconds timeout,
                                           const std::string& address);

bool is_gloo(const c10d_backend& backend);

// Gloo matches what the ranks send each other by a tag that counts their collectives. Mixes 24 bits into that
// of the next one, so that it meets only calls with the same ones. `gloo` is one.
void mark_next_collective(c10d_backend& gloo, uint32_t bits);

}  // namespace lockstep::gloo
