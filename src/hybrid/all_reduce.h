// All-reduce, chunk by chunk. Each step reduces one chunk:
//
//   front  The machine's ranks reduce-scatter the chunk: each has the machine's sum of its share, in place.
//   It
//          starts to send the share to the owners of the same elements on the other machines.
//   back   It adds what it receives from them, in the order of the machines, and the machine's ranks
//   all-gather
//          the shares.
//
// Between two machines, and for small chunks, each owner of a strip sends its whole sum to the others: one
// trip. Otherwise each owner adds one part of the strip, and sends the result to the others: two trips, but
// the fewest bytes, 2 (H - 1) / H of the strip for H machines. The second trip of a step overlaps with the
// next step.
//
// If elements are narrowed on their way, every machine's sum is, including this one's: all ranks add the
// same.
//
// Additions are always in the order of the ranks on a machine, then of the machines: all ranks have the same
// bits, in every run.
#pragma once

#include <optional>
#include <vector>

#include "hybrid/narrow.h"
#include "hybrid/operation.h"
#include "hybrid/shares.h"
#include "shm/kernels.h"

namespace lockstep::hybrid {

class AllReduce final : public Operation {
 public:
  AllReduce(const Paths& paths, Task task);

  size_t steps() const override { return chunks_.size(); }
  void front(size_t step) override;
  void back(size_t step) override;

 private:
  // An exchange with the other owners of a strip; vectors by machine.
  struct Exchange {
    Strip strip;
    Range mine;       // what is added here
    Buffer narrowed;  // the strip as it is sent and received; null if elements are not narrowed
    std::vector<Buffer> received;
    std::vector<comm::TransferPtr> receiving, sending;
    std::vector<comm::TransferPtr> receiving_results, sending_results;
  };
  comm::Piece piece(const Range& range) const;
  // The same for all ranks.
  bool in_two_trips(size_t step) const;
  // Numbers of the transfers. Consecutive ones may take different rails.
  uint64_t first_trip(size_t step) const { return topology().machines() > 2 ? 2 * step : step; }
  static uint64_t second_trip(size_t step) { return 2 * step + 1; }
  std::vector<Exchange>& exchanges_of(size_t step) { return under_way_[step % under_way_.size()]; }
  Exchange begin(Strip strip, size_t step);
  // What the owner on machine `m` adds.
  Range part(const Strip& strip, int m, size_t step) const;
  void reduce_scatter(const Range& chunk) const;
  // Where the bytes of a part are sent from, and where its result arrives.
  comm::Piece on_the_way(const Exchange& exchange, const Range& part) const;
  size_t wire_bytes() const { return narrow_ != nullptr ? narrow_->element_bytes : element_bytes(); }
  float* floats(const Range& range) const { return reinterpret_cast<float*>(piece(range).data); }
  void send_share(Exchange& exchange, size_t step) const;
  void add(const Exchange& exchange, size_t step) const;
  void send_result(Exchange& exchange, size_t step) const;
  void finish(size_t step);
  void all_gather(const Range& chunk) const;

  const shm::Kernel kernel_;
  const Narrow* const narrow_;  // null: elements are sent as they are
  const std::vector<Range> chunks_;
  std::vector<std::vector<Exchange>> under_way_;  // by step, in turn
  std::optional<size_t> unfinished_;              // a step whose second trip is under way
};

}  // namespace lockstep::hybrid
