#include "shm/exchange.h"

#include <algorithm>

#include "shm/arrange.h"
#include "shm/copy.h"

namespace lockstep::shm {

namespace {

// The offset of this rank's piece in the bytes of `giver`.
size_t piece_offset(const Board& board, const Call& call, int giver) {
  const auto& request = call.request;
  if (!pattern_of(request.kind).personal) return 0;
  if (request.kind != Kind::AllToAll) return board.rank() * request.count * c10::elementSize(request.dtype);
  size_t offset = 0;
  for (int rank = 0; rank < board.rank(); ++rank) offset += lengths_of(board, call, giver)[rank];
  return offset;
}

// The piece that `giver` gives to this rank, starting with byte `from`. Of a staged piece, only the bytes of
// the current round are available.
const std::byte* source(const Board& board, const Call& call, int giver, size_t from) {
  const auto& request = call.request;
  const bool personal = pattern_of(request.kind).personal;
  if (giver == board.rank()) return request.give[personal ? giver : 0].data + from;
  if (is_stager(call, giver)) {
    return board.staging(giver, call.first_round + call.pulled) +
           (personal ? board.rank() * call.round_bytes : 0) + (from - call.pulled * call.round_bytes);
  }
  auto& slot = board.call(giver, call.number);
  const size_t offset = piece_offset(board, call, giver);
  if (slot.call.where == Where::Inline) return slot.bytes + table_bytes(board, request.kind) + offset + from;
  return board.memory(giver).at(slot.call.offset, slot.call.bytes) + offset + from;
}

size_t staged_bytes(const Call& call, size_t piece_bytes, uint64_t round) {
  const size_t from = std::min(round * call.round_bytes, piece_bytes);
  return std::min(call.round_bytes, piece_bytes - from);
}

void reduce_into(const Call& call, std::byte* target, c10::SmallVector<const void*, 8>& sources,
                 size_t bytes) {
  const auto& request = call.request;
  const int world = static_cast<int>(sources.size());
  const size_t element = c10::elementSize(request.dtype);
  if (!call.streams_results) {
    void* const result = target;
    call.kernel(&result, 1, sources.data(), world, bytes / element, world);
    return;
  }
  // Kernels have ordinary stores only, so they write to a buffer that stays in the L1 cache.
  alignas(64) std::byte buffer[8192];
  void* const result = buffer;
  for (size_t done = 0; done < bytes;) {
    const size_t length = std::min(sizeof(buffer), bytes - done);
    call.kernel(&result, 1, sources.data(), world, length / element, world);
    stream_bytes(target + done, buffer, length);
    for (auto& source : sources) source = static_cast<const std::byte*>(source) + length;
    done += length;
  }
}

// Reads the bytes [from, to) of every piece; `to` is limited to the length of the piece.
void take(const Board& board, const Call& call, size_t from, size_t to) {
  const auto& request = call.request;
  const int world = board.world_size();
  if (pattern_of(request.kind).reduces) {
    const auto& target = request.take[0];
    to = std::min(to, target.bytes);
    if (from >= to) return;
    c10::SmallVector<const void*, 8> sources;
    for (int rank = 0; rank < world; ++rank) sources.push_back(source(board, call, rank, from));
    reduce_into(call, target.data + from, sources, to - from);
    return;
  }
  // Each rank starts with the next rank, so that not all read the same memory at once.
  for (int step = 0; step < world; ++step) {
    const int giver = (board.rank() + 1 + step) % world;
    if (!is_giver(request, giver)) continue;
    const auto& target = request.take[request.take.size() == 1 ? 0 : giver];
    const size_t end = std::min(to, target.bytes);
    if (from >= end) continue;
    const auto copy = call.streams_results ? stream_bytes : copy_bytes;
    copy(target.data + from, source(board, call, giver, from), end - from);
  }
}

bool pull_next(Board& board, Call& call) {
  const uint64_t round = call.first_round + call.pulled;
  if (call.rounds == 0) {
    take(board, call, 0, SIZE_MAX);
    ++call.pulled;
    return true;
  }
  // This rank's own chunk must be staged, too, before the result overwrites it.
  for (const int giver : call.stagers) {
    if (board.read(&RankWords::staged, giver) <= round) return false;
  }
  const bool last = call.pulled + 1 == call.rounds;
  const size_t from = call.pulled * call.round_bytes;
  take(board, call, from, last ? SIZE_MAX : from + call.round_bytes);
  ++call.pulled;
  board.raise(&RankWords::pulled, round + 1);
  return true;
}

}  // namespace

bool stage_next(Board& board, Call& call) {
  if (call.staged == call.rounds) return false;
  const uint64_t round = call.first_round + call.staged;
  if (round >= kStagingSlots && !board.all_reached(&RankWords::pulled, round - kStagingSlots + 1))
    return false;
  auto* slot = board.staging(board.rank(), round);
  const size_t from = call.staged * call.round_bytes;
  const auto& pieces = call.request.give;
  for (size_t i = 0; i < pieces.size(); ++i, slot += call.round_bytes) {
    // No other rank reads the piece that a rank gives to itself.
    if (pieces.size() > 1 && static_cast<int>(i) == board.rank()) continue;
    stream_bytes(slot, pieces[i].data + from, staged_bytes(call, pieces[i].bytes, call.staged));
  }
  ++call.staged;
  board.raise(&RankWords::staged, round + 1, call.stagers);
  return true;
}

bool step_exchange(Board& board, Call& call) {
  const bool stages = is_stager(call, board.rank());
  const bool takes = is_taker(call.request, board.rank()) && call.request.kind != Kind::Barrier;
  const uint64_t passes = takes ? std::max<uint64_t>(call.rounds, 1) : 0;
  // A rank that stages nothing, or takes nothing, has finished that part of all rounds at once.
  if (!takes && call.pulled == 0 && call.rounds != 0) {
    call.pulled = call.rounds;
    board.raise(&RankWords::pulled, call.first_round + call.rounds);
  }
  if (!stages) call.staged = call.rounds;

  bool moved = false;
  for (bool again = true; again;) {
    again = stages && stage_next(board, call);
    if (call.pulled < passes && pull_next(board, call)) again = true;
    moved |= again;
  }
  if (call.staged < call.rounds || call.pulled < passes) return moved;
  call.stage = Stage::Finished;
  return true;
}

}  // namespace lockstep::shm
