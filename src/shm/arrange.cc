#include "shm/arrange.h"

#include <algorithm>
#include <fmt/format.h>

#include "shm/copy.h"
#include "shm/mismatch.h"
#include "shm/update.h"

namespace lockstep::shm {

namespace {

// Larger than the cache of one core.
constexpr size_t kLargeBytes = size_t{2} << 20;
// In smaller rounds, the counters would cost more than overlapping the ranks' copies gains.
constexpr size_t kSmallestRound = size_t{32} << 10;

void check_calls(const Board& board, const Call& call) {
  const auto& mine = board.call(board.rank(), call.number);
  for (int rank = 0; rank < board.world_size(); ++rank) {
    const auto& theirs = board.call(rank, call.number);
    if (!same_call(mine.call, theirs.call)) throw Disagreement{rank, describe(mine), describe(theirs)};
    if (call.request.kind != Kind::AllToAll) continue;
    const auto given = lengths_of(board, call, rank)[board.rank()];
    const auto wanted = call.request.take[rank].bytes;
    if (given == wanted) continue;
    throw Disagreement{rank, fmt::format("{} that takes {} bytes from rank {}", describe(mine), wanted, rank),
                       fmt::format("one that gives rank {} {} bytes", board.rank(), given)};
  }
}

}  // namespace

Where expose(Board& board, Relocated& relocated, Call& call, CallSlot& slot) {
  const auto& request = call.request;
  slot.call.bytes = slot.call.largest = slot.call.offset = 0;
  if (request.kind == Kind::Update) return expose_update(board, call, slot);
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
    if (const auto offset = relocated.enter(given(request))) {
      call.relocated = true;
      slot.call.offset = *offset;
      return Where::Registered;
    }
  }
  return Where::Staged;
}

void begin(Board& board, Call& call, uint64_t& next_round) {
  check_calls(board, call);
  const auto& request = call.request;
  if (request.kind == Kind::Update) {
    call.algorithm = Algorithm::Update;
    call.reads_registered = true;
    call.first_round = next_round++;
    return;
  }
  const bool personal = pattern_of(request.kind).personal;
  bool all_registered = true;
  size_t largest_staged = 0;
  for (int rank = 0; rank < board.world_size(); ++rank) {
    const auto& words = board.call(rank, call.number).call;
    if (words.where != Where::Registered) all_registered = false;
    if (words.where == Where::Registered) call.reads_registered = true;
    // An all-reduce overwrites its input, so a rank cannot read another one's registered memory at any time.
    // The bytes are staged, unless one rank reads and writes the whole chunk (Algorithm::Claims).
    const bool staged =
        words.where == Where::Staged || (request.kind == Kind::AllReduce && words.where == Where::Registered);
    if (!staged) continue;
    call.stagers.push_back(rank);
    largest_staged = std::max<size_t>(largest_staged, words.largest);
  }
  if (request.kind == Kind::AllReduce && all_registered) {
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

}  // namespace lockstep::shm
