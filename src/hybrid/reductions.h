// The reductions whose result only one rank takes.
#pragma once

#include "hybrid/operation.h"
#include "shm/kernels.h"

namespace lockstep::hybrid {

// Of pieces that one rank on each machine holds, in the order of the machines.
class Reduction : public Operation {
 public:
  Reduction(const Paths& paths, Task task);

 protected:
  // Starts to reduce what all ranks give in `piece` for rank `taker`: the ranks of this machine on one of
  // them, which sends the sum to the taker. `sum`: the memory for that. Returns the transfer.
  comm::TransferPtr reduce_for(int taker, comm::Piece piece, const Buffer& sum) const;
  // On the taker: adds the sums of the other machines to that of its own.
  void add_up(comm::Piece result, const Buffer& own_sum) const;

 private:
  const shm::Kernel kernel_;
};

class Reduce final : public Reduction {
 public:
  using Reduction::Reduction;
  void back(size_t step) override;
};

class ReduceScatter final : public Reduction {
 public:
  using Reduction::Reduction;
  void back(size_t step) override;
};

}  // namespace lockstep::hybrid
