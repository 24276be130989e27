#include "hybrid/all_reduce.h"

#include <utility>

#include "hybrid/window.h"
#include "shm/call.h"

namespace lockstep::hybrid {

namespace {

using comm::Kind;
using comm::Piece;

// Up to this size, a second trip costs more than the bytes that it saves.
constexpr size_t kOneTripBytes = size_t{16} << 10;

}  // namespace

AllReduce::AllReduce(const Paths& paths, Task task)
    : Operation(paths, std::move(task)),
      kernel_(shm::kernel_for(request().dtype, request().op)),
      narrow_(narrow_to(request().wire)),
      chunks_(chunks_of(static_cast<int64_t>(request().give[0].bytes / element_bytes()), topology(),
                        element_bytes())),
      under_way_(kWindow + 1) {}

Piece AllReduce::piece(const Range& range) const {
  return {request().take[0].data + range.from * element_bytes(), range.count * element_bytes()};
}

bool AllReduce::in_two_trips(size_t step) const {
  return topology().machines() > 2 && chunks_[step].count * element_bytes() > kOneTripBytes;
}

Range AllReduce::part(const Strip& strip, int m, size_t step) const {
  return in_two_trips(step) ? part_of(strip.range, topology().machines(), m, element_bytes()) : strip.range;
}

// ---- Front

void AllReduce::front(size_t step) {
  auto& exchanges = exchanges_of(step);
  // Receiving starts first: what arrives then has a place.
  for (auto& strip : strips_of(chunks_[step], topology(), element_bytes())) {
    exchanges.push_back(begin(std::move(strip), step));
  }
  reduce_scatter(chunks_[step]);
  for (auto& exchange : exchanges) send_share(exchange, step);
}

AllReduce::Exchange AllReduce::begin(Strip strip, size_t step) {
  const auto machines = static_cast<size_t>(topology().machines());
  Exchange exchange{.strip = std::move(strip),
                    .received = std::vector<Buffer>(machines),
                    .receiving = std::vector<comm::TransferPtr>(machines),
                    .sending = std::vector<comm::TransferPtr>(machines),
                    .receiving_results = std::vector<comm::TransferPtr>(machines),
                    .sending_results = std::vector<comm::TransferPtr>(machines)};
  exchange.mine = part(exchange.strip, topology().machine, step);
  if (narrow_ != nullptr) exchange.narrowed = take_buffer(exchange.strip.range.count * wire_bytes());
  const size_t bytes = exchange.mine.count * wire_bytes();
  for (int m = 0; m < topology().machines(); ++m) {
    if (m == topology().machine) continue;
    const int owner = exchange.strip.owners[m];
    auto& buffer = exchange.received[m] = take_buffer(bytes);
    exchange.receiving[m] = receive(owner, first_trip(step), {buffer.get(), bytes}, buffer);
    if (!in_two_trips(step)) continue;
    // Into the place of this rank's own sum: nothing arrives there before the owner has received that.
    exchange.receiving_results[m] = receive(
        owner, second_trip(step), on_the_way(exchange, part(exchange.strip, m, step)), exchange.narrowed);
  }
  return exchange;
}

Piece AllReduce::on_the_way(const Exchange& exchange, const Range& part) const {
  if (narrow_ == nullptr) return piece(part);
  return {exchange.narrowed.get() + (part.from - exchange.strip.range.from) * wire_bytes(),
          part.count * wire_bytes()};
}

void AllReduce::reduce_scatter(const Range& chunk) const {
  const auto shares = shares_of(chunk, topology().local_size(), element_bytes());
  auto scatter = local(Kind::ReduceScatter);
  scatter.count = shares.front().count;
  for (const auto& share : shares) scatter.give.push_back(piece(share));
  scatter.take.push_back(piece(shares[topology().local]));
  run(Half::Front, std::move(scatter));
}

void AllReduce::send_share(Exchange& exchange, size_t step) const {
  if (narrow_ != nullptr) {
    const auto& strip = exchange.strip.range;
    const auto ranks = static_cast<float>(topology().machine_of.size());
    narrow_->narrow(exchange.narrowed.get(), floats(strip), strip.count,
                    request().op == ReduceOp::Avg ? ranks : 1);
  }
  for (int m = 0; m < topology().machines(); ++m) {
    if (m == topology().machine) continue;
    exchange.sending[m] = send(exchange.strip.owners[m], first_trip(step),
                               on_the_way(exchange, part(exchange.strip, m, step)), exchange.narrowed);
  }
}

// ---- Back

void AllReduce::back(size_t step) {
  for (auto& exchange : exchanges_of(step)) {
    for (const auto& transfer : exchange.receiving) wait(transfer);
    // The sum overwrites what was sent.
    for (const auto& transfer : exchange.sending) wait(transfer);
    add(exchange, step);
    if (in_two_trips(step)) send_result(exchange, step);
  }
  if (const auto previous = std::exchange(unfinished_, std::nullopt)) finish(*previous);
  if (in_two_trips(step) && step + 1 < steps()) {
    unfinished_ = step;
  } else {
    finish(step);
  }
}

void AllReduce::add(const Exchange& exchange, size_t step) const {
  if (exchange.mine.count == 0) return;
  const int machines = topology().machines();
  const auto own = on_the_way(exchange, exchange.mine);
  c10::SmallVector<const std::byte*, 8> sums;
  for (int m = 0; m < machines; ++m) {
    sums.push_back(m == topology().machine ? own.data : exchange.received[m].get());
  }
  if (narrow_ != nullptr) {
    narrow_->add(floats(exchange.mine), sums.data(), machines, exchange.mine.count);
    if (in_two_trips(step)) narrow_->narrow(own.data, floats(exchange.mine), exchange.mine.count, 1);
    return;
  }
  void* const result = own.data;
  const c10::SmallVector<const void*, 8> sources(sums.begin(), sums.end());
  kernel_(&result, 1, sources.data(), machines, exchange.mine.count,
          static_cast<int>(topology().machine_of.size()));
}

void AllReduce::send_result(Exchange& exchange, size_t step) const {
  for (int m = 0; m < topology().machines(); ++m) {
    if (m == topology().machine) continue;
    exchange.sending_results[m] = send(exchange.strip.owners[m], second_trip(step),
                                       on_the_way(exchange, exchange.mine), exchange.narrowed);
  }
}

void AllReduce::finish(size_t step) {
  auto& exchanges = exchanges_of(step);
  for (const auto& exchange : exchanges) {
    for (const auto& transfer : exchange.receiving_results) wait(transfer);
    for (const auto& transfer : exchange.sending_results) wait(transfer);
    // This rank's own part, too: all ranks have what the others received.
    const auto& strip = exchange.strip.range;
    if (narrow_ != nullptr && in_two_trips(step)) {
      narrow_->widen(floats(strip), exchange.narrowed.get(), strip.count);
    }
  }
  exchanges.clear();
  all_gather(chunks_[step]);
}

void AllReduce::all_gather(const Range& chunk) const {
  const auto shares = shares_of(chunk, topology().local_size(), element_bytes());
  auto gather = local(Kind::AllGather);
  gather.count = shares.front().count;
  for (const auto& share : shares) gather.take.push_back(piece(share));
  auto& own = gather.take[topology().local];
  gather.give.push_back(own);
  own.bytes = 0;  // it is there
  run(Half::Back, std::move(gather));
}

}  // namespace lockstep::hybrid
