#include "hybrid/moves.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <utility>
#include <vector>

#include "comm/diagnose.h"
#include "hybrid/shares.h"

namespace lockstep::hybrid {

using comm::Kind;
using comm::Piece;
using Transfers = std::vector<comm::TransferPtr>;

void Broadcast::back(size_t) {
  const int root = request().root;
  const bool is_root = topology().rank == root;
  const int entry = topology().partner_on(topology().machine, root);  // the root itself on its machine
  const auto whole = is_root ? request().give[0] : request().take[0];
  const auto chunks = chunks_of(static_cast<int64_t>(whole.bytes), topology(), 1);
  const auto piece = [&](const Range& chunk) {
    return Piece{whole.data + chunk.from, static_cast<size_t>(chunk.count)};
  };
  Transfers transfers;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (is_root) {
      for (int m = 0; m < topology().machines(); ++m) {
        if (m != topology().machine)
          transfers.push_back(send(topology().partner_on(m, root), i, piece(chunks[i])));
      }
    } else if (topology().rank == entry) {
      transfers.push_back(receive(root, i, piece(chunks[i])));
    }
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (!is_root && topology().rank == entry) wait(transfers[i]);
    auto share = local(Kind::Broadcast, topology().local_of[entry]);
    share.count = chunks[i].count;
    (topology().rank == entry ? share.give : share.take).push_back(piece(chunks[i]));
    run(Half::Back, std::move(share));
  }
  for (const auto& transfer : transfers) wait(transfer);
}

void AllGather::back(size_t) {
  const int me = topology().rank;
  Transfers sending, receiving(topology().machine_of.size());
  const auto entry = [&](int giver) { return topology().partner_on(topology().machine, giver); };
  for (size_t giver = 0; giver < receiving.size(); ++giver) {
    if (!topology().is_local(giver) && entry(giver) == me)
      receiving[giver] = receive(giver, 0, request().take[giver]);
  }
  for (int m = 0; m < topology().machines(); ++m) {
    if (m != topology().machine) sending.push_back(send(topology().partner_on(m, me), 0, request().give[0]));
  }
  auto gather = local(Kind::AllGather);
  gather.count = request().count;
  gather.give = request().give;
  for (const int giver : topology().local_ranks()) gather.take.push_back(request().take[giver]);
  run(Half::Back, std::move(gather));
  for (size_t giver = 0; giver < receiving.size(); ++giver) {
    if (topology().is_local(giver)) continue;
    wait(receiving[giver]);
    auto share = local(Kind::Broadcast, topology().local_of[entry(giver)]);
    share.count = request().count;
    (entry(giver) == me ? share.give : share.take).push_back(request().take[giver]);
    run(Half::Back, std::move(share));
  }
  for (const auto& transfer : sending) wait(transfer);
}

void Gather::back(size_t) {
  const int root = request().root;
  Transfers transfers;
  if (!topology().is_local(root)) {
    wait(send(root, 0, request().give[0]));
    return;
  }
  if (topology().rank == root) {
    for (size_t giver = 0; giver < request().take.size(); ++giver) {
      if (!topology().is_local(giver)) transfers.push_back(receive(giver, 0, request().take[giver]));
    }
  }
  auto gather = local(Kind::Gather, topology().local_of[root]);
  gather.count = request().count;
  gather.give = request().give;
  if (topology().rank == root) {
    for (const int giver : topology().local_ranks()) gather.take.push_back(request().take[giver]);
  }
  run(Half::Back, std::move(gather));
  for (const auto& transfer : transfers) wait(transfer);
}

void Scatter::back(size_t) {
  const int root = request().root;
  Transfers transfers;
  if (!topology().is_local(root)) {
    wait(receive(root, 0, request().take[0]));
    return;
  }
  auto scatter = local(Kind::Scatter, topology().local_of[root]);
  scatter.count = request().count;
  scatter.take = request().take;
  if (topology().rank == root) {
    for (size_t taker = 0; taker < request().give.size(); ++taker) {
      if (!topology().is_local(taker)) transfers.push_back(send(taker, 0, request().give[taker]));
    }
    for (const int taker : topology().local_ranks()) scatter.give.push_back(request().give[taker]);
    scatter.give_is_contiguous = false;
  }
  run(Half::Back, std::move(scatter));
  for (const auto& transfer : transfers) wait(transfer);
}

namespace {

// Parts of an all-to-all.
constexpr uint64_t kPiece = 0, kSize = 1;

}  // namespace

// The size of the piece that another rank gives.
struct AllToAll::Announced {
  Buffer bytes;
  comm::TransferPtr transfer;
};

void AllToAll::expect_size(int giver, const Announced& announced) const {
  wait(announced.transfer);
  uint64_t theirs = 0;
  std::memcpy(&theirs, announced.bytes.get(), sizeof theirs);
  const auto mine = request().take[giver].bytes;
  if (theirs == mine) return;
  const auto call = comm::describe(request());
  throw comm::Disagreement{giver, number(), fmt::format("{}, with {} bytes from rank {}", call, mine, giver),
                           fmt::format("{}, with {} bytes to rank {}", call, theirs, topology().rank)};
}

void AllToAll::back(size_t) {
  Transfers transfers;
  const auto world = static_cast<int>(request().give.size());
  // Each rank starts with the next rank, so that not all send to the same one at once.
  std::vector<int> givers, takers;
  for (int step = 1; step < world; ++step) {
    const int giver = (topology().rank + world - step) % world, taker = (topology().rank + step) % world;
    if (!topology().is_local(giver)) givers.push_back(giver);
    if (!topology().is_local(taker)) takers.push_back(taker);
  }
  std::vector<Announced> announced;
  for (const int giver : givers) {
    if (request().any_sizes) {
      const auto size = take_buffer(sizeof(uint64_t));
      announced.push_back({size, receive(giver, kSize, {size.get(), sizeof(uint64_t)}, size)});
    } else {
      transfers.push_back(receive(giver, kPiece, request().take[giver]));
    }
  }
  for (const int taker : takers) {
    if (request().any_sizes) {
      const auto size = take_buffer(sizeof(uint64_t));
      const uint64_t bytes = request().give[taker].bytes;
      std::memcpy(size.get(), &bytes, sizeof bytes);
      transfers.push_back(send(taker, kSize, {size.get(), sizeof bytes}, size));
    }
    transfers.push_back(send(taker, kPiece, request().give[taker]));
  }
  for (size_t i = 0; i < announced.size(); ++i) {
    expect_size(givers[i], announced[i]);
    transfers.push_back(receive(givers[i], kPiece, request().take[givers[i]]));
  }
  auto exchange = local(Kind::AllToAll);
  for (const int other : topology().local_ranks()) {
    exchange.give.push_back(request().give[other]);
    exchange.take.push_back(request().take[other]);
  }
  exchange.give_is_contiguous = false;
  run(Half::Back, std::move(exchange));
  for (const auto& transfer : transfers) wait(transfer);
}

void Barrier::back(size_t) {
  if (topology().is_leader()) {
    Transfers transfers;
    for (int m = 0; m < topology().machines(); ++m) {
      if (m == topology().machine) continue;
      const auto word = take_buffer(2);
      transfers.push_back(receive(topology().leader_of(m), 0, {word.get(), 1}, word));
      transfers.push_back(send(topology().leader_of(m), 0, {word.get() + 1, 1}, word));
    }
    for (const auto& transfer : transfers) wait(transfer);
  }
  auto meet = local(Kind::Barrier);
  run(Half::Back, std::move(meet));
}

}  // namespace lockstep::hybrid
