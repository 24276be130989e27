// How the elements of an all-reduce are divided: into chunks, one after the other; each chunk among the ranks
// of a machine; and each rank's share among the ranks on the other machines with which it is exchanged.
//
// Pure functions: all ranks compute the same division.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/range.h"
#include "hybrid/topology.h"

namespace lockstep::hybrid {

using comm::Range;

// The chunks of `count` elements. The first ones, and those of small tensors, are smaller, so that the
// network starts sooner. Between more ranks, chunks are larger, so that the messages into which they are
// divided are not too small.
std::vector<Range> chunks_of(int64_t count, const Topology& topology, size_t element_bytes);

// The size from which a bucket of gradients gains nothing by being larger (comm/transport.h).
size_t bucket_bytes_for(const Topology& topology);

// The share of each of `ranks` local ranks of a chunk: equal ones, except for the last; all in whole cache
// lines. A small chunk is the share of the first rank alone, because each message costs more than its bytes.
std::vector<Range> shares_of(const Range& chunk, int ranks, size_t element_bytes);

// A part of a chunk that has one owner on every machine.
struct Strip {
  Range range;
  std::vector<int> owners;  // by machine: the rank whose share contains it
};
// The strips of the chunk that this rank owns. There are several only if other machines have more ranks.
std::vector<Strip> strips_of(const Range& chunk, const Topology& topology, size_t element_bytes);

// Part `index` of `parts` of a range, all nearly equal and in whole cache lines.
Range part_of(const Range& range, int parts, int index, size_t element_bytes);

}  // namespace lockstep::hybrid
