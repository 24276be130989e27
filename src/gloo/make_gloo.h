// Creates LibTorch's Gloo backend, and provides what c10d's interface does not.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/c10d.h>

namespace lockstep::gloo {

bool has_gloo();

// All ranks that share `store` must call it; it blocks until they are connected. `addresses`: the local
// addresses to which peers connect. Gloo connects the ranks once for each of them, and distributes calls over
// these connections. All ranks must have the same number. Throws Gloo's exceptions.
c10::intrusive_ptr<c10d_backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int world_size, std::chrono::milliseconds timeout,
                                           const std::vector<std::string>& addresses);

bool is_gloo(const c10d_backend& backend);

// How many connections it has to each rank. Which of them a call uses follows from its tag.
int connections_of(c10d_backend& gloo);

// Gloo matches the ranks' messages by a tag that counts their collectives. Adds 24 bits to the tag of the
// next collective, so that it is matched only with calls that have the same bits. `gloo` must be a Gloo
// backend.
void mark_next_collective(c10d_backend& gloo, uint32_t bits);

}  // namespace lockstep::gloo
