// The collectives that move bytes without combining them. Every byte crosses the link of a machine only once,
// except those that the root sends to several machines.
#pragma once

#include "hybrid/operation.h"

namespace lockstep::hybrid {

// The root sends to one rank on each machine, which broadcasts there, chunk by chunk.
class Broadcast final : public Operation {
 public:
  using Operation::Operation;
  void back(size_t step) override;
};

// Each rank's piece goes to one rank on each machine, which broadcasts it there.
class AllGather final : public Operation {
 public:
  using Operation::Operation;
  void back(size_t step) override;
};

// Directly to and from the root.
class Gather final : public Operation {
 public:
  using Operation::Operation;
  void back(size_t step) override;
};
class Scatter final : public Operation {
 public:
  using Operation::Operation;
  void back(size_t step) override;
};
// Directly between every two ranks. Pieces of any sizes are announced: a rank does not take one before it
// knows that it has the right size, because a link may not compare sizes itself.
class AllToAll final : public Operation {
 public:
  using Operation::Operation;
  void back(size_t step) override;

 private:
  struct Announced;
  void expect_size(int giver, const Announced& announced) const;
};

// The machines' first ranks meet after all ranks of their machines have met.
class Barrier final : public Operation {
 public:
  using Operation::Operation;
  void back(size_t step) override;
};

}  // namespace lockstep::hybrid
