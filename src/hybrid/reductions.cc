#include "hybrid/reductions.h"

#include <utility>
#include <vector>

#include "shm/call.h"

namespace lockstep::hybrid {

using comm::Kind;
using comm::Piece;

Reduction::Reduction(const Paths& paths, Task task)
    : Operation(paths, std::move(task)), kernel_(shm::kernel_for(request().dtype, request().op)) {}

comm::TransferPtr Reduction::reduce_for(int taker, Piece piece, const Buffer& sum) const {
  const int entry = topology().partner_on(topology().machine, taker);
  const bool sums = topology().rank == entry;
  auto reduce = local(Kind::Reduce, topology().local_of[entry]);
  reduce.count = piece.bytes / element_bytes();
  reduce.give.push_back(piece);
  if (sums) reduce.take.push_back({sum.get(), piece.bytes});
  run(Half::Back, std::move(reduce));
  if (!sums || topology().is_local(taker)) return {};
  return send(taker, 0, {sum.get(), piece.bytes}, sum);
}

void Reduction::add_up(Piece result, const Buffer& own_sum) const {
  if (result.bytes == 0) return;
  const int machines = topology().machines();
  std::vector<Buffer> sums(machines);
  std::vector<comm::TransferPtr> receiving;
  c10::SmallVector<const void*, 8> sources;
  for (int m = 0; m < machines; ++m) {
    if (m == topology().machine) {
      sums[m] = own_sum;
    } else {
      sums[m] = take_buffer(result.bytes);
      receiving.push_back(
          receive(topology().partner_on(m, topology().rank), 0, {sums[m].get(), result.bytes}, sums[m]));
    }
    sources.push_back(sums[m].get());
  }
  for (const auto& transfer : receiving) wait(transfer);
  void* const to = result.data;
  kernel_(&to, 1, sources.data(), machines, result.bytes / element_bytes(),
          static_cast<int>(topology().machine_of.size()));
}

void Reduce::back(size_t) {
  const auto piece = request().give[0];
  const auto sum = take_buffer(piece.bytes);
  const auto sending = reduce_for(request().root, piece, sum);
  if (topology().rank == request().root) add_up(request().take[0], sum);
  wait(sending);
}

void ReduceScatter::back(size_t) {
  std::vector<comm::TransferPtr> sending;
  Buffer own_sum;
  for (size_t taker = 0; taker < request().give.size(); ++taker) {
    const auto sum = take_buffer(request().give[taker].bytes);
    sending.push_back(reduce_for(static_cast<int>(taker), request().give[taker], sum));
    if (static_cast<int>(taker) == topology().rank) own_sum = sum;
  }
  add_up(request().take[0], own_sum);
  for (const auto& transfer : sending) wait(transfer);
}

}  // namespace lockstep::hybrid
