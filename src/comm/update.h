// An all-reduce in which ranks take what a transform makes of the result, instead of the result: a step of an
// optimizer, in which the parameters take the place of the averaged gradients.
//
// Each element is transformed by one rank only. A transport that gives ranks access to each other's memory
// reduces, transforms and distributes in one pass; the others do the same with a reduce-scatter and an
// all-gather, chunk by chunk.
#pragma once

#include <cstddef>
#include <vector>

#include <lockstep/process_group.h>

#include "comm/range.h"
#include "comm/request.h"

namespace lockstep::comm {

class Transform {
 public:
  // Replaces the reduced elements `range` in `values` by what the ranks take. Called for parts of this rank's
  // ranges, in any order, by one thread at a time, and never twice for an element.
  virtual void apply(std::byte* values, const Range& range) = 0;

 protected:
  ~Transform() = default;
};

// The request of an update: of an all-reduce, with one piece to give and another one to take. `take` of no
// bytes: only the transforms are wanted. With Request::takes_together, `take` is memory that the ranks of a
// machine share. The number of elements must be a multiple of the world size. All ranks must call it; it
// blocks.
void update(ProcessGroup::Impl& group, Request& request, Transform& transform);
// The elements that this rank transforms in an update of `count` elements, ascending.
std::vector<Range> updated_ranges(const ProcessGroup::Impl& group, const Request& request);

// A transport's own way to do it.
class OnePass {
 public:
  virtual void update(Request& request, Transform& transform) = 0;
  virtual std::vector<Range> updated_ranges(const Request& request) const = 0;

 protected:
  ~OnePass() = default;
};

}  // namespace lockstep::comm
