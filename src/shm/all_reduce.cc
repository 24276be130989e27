#include "shm/all_reduce.h"

#include <algorithm>

#include "shm/copy.h"
#include "shm/exchange.h"

namespace lockstep::shm {

namespace {

using Pointers = c10::SmallVector<void*, 8>;
using ConstPointers = c10::SmallVector<const void*, 8>;

// ---- Claims

constexpr size_t kLargestClaim = size_t{256} << 10;
constexpr size_t kSmallestClaim = size_t{16} << 10;

// Several chunks per rank, so that no rank waits long for another one's last chunk.
size_t claim_bytes(const Board& board, size_t bytes) {
  const size_t share = bytes / (4 * static_cast<size_t>(board.world_size()));
  return std::clamp(share / 4096 * 4096, kSmallestClaim, kLargestClaim);
}

// The upper half of a claim word; the lower half is the count.
uint32_t tag_of(uint64_t number) { return static_cast<uint32_t>(number + 1); }
uint64_t claim_word(uint64_t number, uint64_t count) { return uint64_t{tag_of(number)} << 32 | count; }

// The count, or 0 if the word belongs to another call.
uint64_t count_in(uint64_t word, uint64_t number) {
  return word >> 32 == tag_of(number) ? word & UINT32_MAX : 0;
}

// Adds one to the count of this call, unless it has reached `limit`. Returns the previous count.
uint64_t count_up(std::atomic<uint64_t>& word, uint64_t number, uint64_t limit) {
  uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t count = count_in(seen, number);
    if (count >= limit) return count;
    // Acquire and release: the rank that counts last sees what all earlier ranks have written.
    if (word.compare_exchange_weak(seen, claim_word(number, count + 1), std::memory_order_seq_cst))
      return count;
  }
}

// ---- Parts

struct Range {
  size_t from, to;
};

size_t chunk_length(const Call& call, uint64_t round_of_call) {
  return std::min(call.round_bytes, call.request.give[0].bytes - round_of_call * call.round_bytes);
}

Range part_of(int rank, int world, size_t length) {
  const size_t part = (length / world + 64) / 64 * 64;
  return {std::min(rank * part, length), std::min((rank + 1) * part, length)};
}

bool reduce_next(Board& board, Call& call) {
  if (call.reduced == call.rounds) return false;
  const uint64_t round = call.first_round + call.reduced;
  if (!board.all_reached(&RankWords::staged, round + 1)) return false;
  const int world = board.world_size();
  const auto part = part_of(board.rank(), world, chunk_length(call, call.reduced));
  if (part.from < part.to) {
    ConstPointers sources;
    for (int rank = 0; rank < world; ++rank) sources.push_back(board.staging(rank, round) + part.from);
    void* const result = board.staging(board.rank(), round) + part.from;
    call.kernel(&result, 1, sources.data(), world,
                (part.to - part.from) / c10::elementSize(call.request.dtype), world);
  }
  ++call.reduced;
  board.raise(&RankWords::reduced, round + 1);
  return true;
}

bool copy_out_next(Board& board, Call& call) {
  if (call.pulled == call.rounds) return false;
  const uint64_t round = call.first_round + call.pulled;
  if (!board.all_reached(&RankWords::reduced, round + 1)) return false;
  const int world = board.world_size();
  auto* target = call.request.take[0].data + call.pulled * call.round_bytes;
  for (int step = 0; step < world; ++step) {
    const int rank = (board.rank() + step) % world;
    const auto part = part_of(rank, world, chunk_length(call, call.pulled));
    if (part.from < part.to) {
      copy_bytes(target + part.from, board.staging(rank, round) + part.from, part.to - part.from);
    }
  }
  ++call.pulled;
  board.raise(&RankWords::pulled, round + 1);
  return true;
}

}  // namespace

bool step_claims(Board& board, Call& call, Effort effort) {
  const auto& request = call.request;
  const int world = board.world_size();
  const size_t bytes = request.give[0].bytes;
  const size_t size = claim_bytes(board, bytes);
  const uint64_t chunks = (bytes + size - 1) / size;
  auto& claims = board.claims(call.number);

  const uint64_t share = effort == Effort::All ? chunks : (chunks + world - 1) / world;
  bool moved = false;
  Pointers tensors;
  // Identifies the rank that has claimed a chunk and not reduced it (late_ranks.h).
  auto& working = board.words(board.rank()).working.value;
  while (call.claimed < share && count_in(claims.taken.value.load(), call.number) < chunks) {
    board.throw_if_peer_failed();  // its memory must not be written any more
    working.store(call.number + 1, std::memory_order_release);
    const uint64_t chunk = count_up(claims.taken.value, call.number, chunks);
    if (chunk >= chunks) break;
    ++call.claimed;
    moved = true;
    if (tensors.empty()) {
      for (int rank = 0; rank < world; ++rank) {
        tensors.push_back(board.memory(rank).at(board.call(rank, call.number).call.offset, bytes));
      }
    }
    const size_t from = chunk * size;
    const size_t length = std::min(size, bytes - from);
    Pointers here;
    for (void* tensor : tensors) here.push_back(static_cast<std::byte*>(tensor) + from);
    call.kernel(here.data(), world, here.data(), world, length / c10::elementSize(request.dtype), world);
    if (count_up(claims.done.value, call.number, chunks) + 1 == chunks) board.ring_all();
  }
  working.store(0, std::memory_order_release);
  if (claims.done.value.load(std::memory_order_seq_cst) != claim_word(call.number, chunks)) return moved;
  call.stage = Stage::Finished;
  return true;
}

bool step_parts(Board& board, Call& call) {
  bool moved = false;
  for (bool again = true; again;) {
    again = stage_next(board, call);
    again |= reduce_next(board, call);
    again |= copy_out_next(board, call);
    moved |= again;
  }
  if (call.pulled < call.rounds) return moved;
  call.stage = Stage::Finished;
  return true;
}

}  // namespace lockstep::shm
