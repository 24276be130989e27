#include "shm/exchange.h"

#include <algorithm>
#include <fmt/format.h>

#include "shm/copy.h"
#include "shm/mismatch.h"

namespace lockstep::shm {

namespace {

// Larger than the cache of one core.
constexpr size_t kLargeBytes = size_t{2} << 20;
// In smaller rounds, the counters would cost more than overlapping the ranks' copies gains.
constexpr size_t kSmallestRound = size_t{32} << 10;

// The inline data of an all-to-all starts with a table: the number of bytes for each rank.
size_t table_bytes(const Board& board, Kind kind) {
  return kind == Kind::AllToAll ? board.world_size() * sizeof(uint64_t) : 0;
}

const uint64_t* lengths_of(const Board& board, const Call& call, int giver) {
  return reinterpret_cast<const uint64_t*>(board.call(giver, call.number).bytes);
}

// The offset of this rank's piece in the bytes of `giver`.
size_t piece_offset(const Board& board, const Call& call, int giver) {
  const auto& request = call.request;
  if (!pattern_of(request.kind).personal) return 0;
  if (request.kind != Kind::AllToAll) return board.rank() * request.count * c10::elementSize(request.dtype);
  size_t offset = 0;
  for (int rank = 0; rank < board.rank(); ++rank) offset += lengths_of(board, call, giver)[rank];
  return offset;
}

bool is_stager(const Call& call, int rank) {
  return !call.stagers.empty() &&
         std::find(call.stagers.begin(), call.stagers.end(), rank) != call.stagers.end();
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

void check_calls(const Board& board, const Call& call) {
  const auto& mine = board.call(board.rank(), call.number);
  for (int rank = 0; rank < board.world_size(); ++rank) {
    const auto& theirs = board.call(rank, call.number);
    if (!same_call(call.request, theirs.call)) throw Disagreement{rank, describe(mine), describe(theirs)};
    if (call.request.kind != Kind::AllToAll) continue;
    const auto given = lengths_of(board, call, rank)[board.rank()];
    const auto wanted = call.request.take[rank].bytes;
    if (given == wanted) continue;
    throw Disagreement{rank, fmt::format("{} that takes {} bytes from rank {}", describe(mine), wanted, rank),
                       fmt::format("one that gives rank {} {} bytes", board.rank(), given)};
  }
}

}  // namespace

Where expose(Board& board, const Call& call, CallSlot& slot) {
  const auto& request = call.request;
  slot.call.bytes = slot.call.largest = slot.call.offset = 0;
  if (!is_giver(request, board.rank())) return Where::Nowhere;
  for (const auto& piece : request.give) {
    slot.call.bytes += piece.bytes;
    slot.call.largest = std::max<uint64_t>(slot.call.largest, piece.bytes);
  }
  const size_t table = table_bytes(board, request.kind);
  if (table != 0) {
    auto* lengths = reinterpret_cast<uint64_t*>(slot.bytes);
    for (const auto& piece : request.give) *lengths++ = piece.bytes;
  }
  if (table + slot.call.bytes <= kInlineBytes) {
    auto* to = slot.bytes + table;
    for (const auto& piece : request.give) {
      copy_bytes(to, piece.data, piece.bytes);
      to += piece.bytes;
    }
    return Where::Inline;
  }
  if (request.give_is_contiguous) {
    if (const auto offset = board.memory(board.rank()).offset_of(request.give[0].data, slot.call.bytes)) {
      slot.call.offset = *offset;
      return Where::Registered;
    }
  }
  return Where::Staged;
}

void begin(Board& board, Call& call, uint64_t& next_round) {
  check_calls(board, call);
  const auto& request = call.request;
  const bool personal = pattern_of(request.kind).personal;
  bool all_registered = true;
  bool any_large = false;
  size_t largest_staged = 0;
  for (int rank = 0; rank < board.world_size(); ++rank) {
    const auto& words = board.call(rank, call.number).call;
    if (words.where != Where::Registered) all_registered = false;
    if (words.where == Where::Registered || words.where == Where::Staged) any_large = true;
    if (words.where == Where::Registered) call.reads_registered = true;
    // An all-reduce overwrites its input, so a rank cannot read another one's registered memory at any time.
    // The bytes are staged, unless one rank reads and writes the whole chunk (Algorithm::Claims).
    const bool staged =
        words.where == Where::Staged || (request.kind == Kind::AllReduce && words.where == Where::Registered);
    if (!staged) continue;
    call.stagers.push_back(rank);
    largest_staged = std::max<size_t>(largest_staged, words.largest);
  }
  if (request.kind == Kind::AllReduce && any_large && all_registered) {
    call.algorithm = Algorithm::Claims;
    call.stagers.clear();
    return;
  }
  call.exposed = board.call(board.rank(), call.number).call.where == Where::Registered &&
                 request.kind != Kind::AllReduce;
  // A result that overwrites the input was just read, so it is in the cache.
  const bool in_place = request.kind == Kind::AllReduce || request.kind == Kind::Reduce;
  size_t taken = 0;
  for (const auto& piece : request.take) taken += piece.bytes;
  call.streams_results = !in_place && taken >= kLargeBytes;
  if (call.stagers.empty()) return;
  if (request.kind == Kind::AllReduce && board.world_size() > 2) call.algorithm = Algorithm::Parts;
  // At least four rounds if the size allows it, so that one rank can write while another reads.
  const size_t share = largest_staged / 4 / 4096 * 4096;
  const size_t room = personal ? board.chunk_bytes() / board.world_size() / 64 * 64 : board.chunk_bytes();
  call.round_bytes = std::min(std::max(share, kSmallestRound), room);
  call.rounds = (largest_staged + call.round_bytes - 1) / call.round_bytes;
  call.first_round = next_round;
  next_round += call.rounds;
}

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
