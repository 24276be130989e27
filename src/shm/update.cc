#include "shm/update.h"

#include <algorithm>
#include <cstring>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "shm/copy.h"

namespace lockstep::shm {

namespace {

constexpr int64_t kCacheLine = 64;
// Reduced and transformed while it is in the L1 cache.
constexpr size_t kBlockBytes = size_t{8} << 10;
// Failures of other ranks are looked for once in so many blocks: their memory must not be written any more.
constexpr int kBlocksBetweenLooks = 32;
constexpr uint64_t kNowhere = UINT64_MAX;

[[noreturn]] void refuse_other_memory() {
  throw UsageError(base::compose({.what = "an update was given memory that its group has not supplied",
                                  .hint = "please report this as a defect of lockstep"}));
}

// In the slot of the call: where the rank takes the result.
uint64_t& target_in(CallSlot& slot) { return *reinterpret_cast<uint64_t*>(slot.bytes); }

class Part {
 public:
  Part(Board& board, Call& call)
      : board_(board),
        call_(call),
        divisor_(call.request.participants > 0 ? call.request.participants : board.world_size()) {
    const auto bytes = call.request.give[0].bytes;
    for (int rank = 0; rank < board.world_size(); ++rank) {
      auto& slot = board.call(rank, call.number);
      sources_.push_back(board.memory(rank).at(slot.call.offset, bytes));
      if (target_in(slot) != kNowhere) targets_.push_back(board.memory(rank).at(target_in(slot), bytes));
    }
  }

  void run() {
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(call_.request.dtype));
    const auto part = updated_part(board_.rank(), board_.world_size(),
                                   static_cast<int64_t>(call_.request.count), element_bytes);
    const int64_t length = static_cast<int64_t>(kBlockBytes) / element_bytes;
    end_ = part.end() * element_bytes;
    int blocks = 0;
    for (auto from = part.from; from < part.end(); from += length) {
      if (blocks++ % kBlocksBetweenLooks == 0) board_.throw_if_peer_failed();
      run_block({from, std::min(length, part.end() - from)}, element_bytes);
    }
  }

 private:
  void run_block(const comm::Range& range, int64_t element_bytes) {
    alignas(kCacheLine) std::byte block[kBlockBytes];
    const auto at = range.from * element_bytes;
    const int world = board_.world_size();
    c10::SmallVector<const void*, 8> sources;
    for (const auto* source : sources_) sources.push_back(source + at);
    void* const result = block;
    call_.kernel(&result, 1, sources.data(), world, range.count, divisor_);
    prefetch(at + range.count * element_bytes);
    call_.transform->apply(block, range);
    for (auto* target : targets_) stream_bytes(target + at, block, range.count * element_bytes);
  }

  // The next block comes from memory while the transform of this one computes.
  void prefetch(int64_t at) {
    const auto end = std::min<int64_t>(at + static_cast<int64_t>(kBlockBytes), end_);
    for (const auto* source : sources_) {
      for (auto line = at; line < end; line += kCacheLine) __builtin_prefetch(source + line, 0, 2);
    }
  }

  Board& board_;
  Call& call_;
  const int divisor_;
  int64_t end_ = 0;  // of this rank's part, in bytes
  c10::SmallVector<const std::byte*, 8> sources_;
  c10::SmallVector<std::byte*, 8> targets_;
};

}  // namespace

comm::Range updated_part(int rank, int world_size, int64_t count, size_t element_bytes) {
  const auto line = std::max<int64_t>(1, kCacheLine / static_cast<int64_t>(element_bytes));
  const auto share = ((count + world_size - 1) / world_size + line - 1) / line * line;
  const auto from = std::min(rank * share, count);
  return {from, std::min(share, count - from)};
}

// Common memory belongs to one of the ranks, which takes the result for all.
std::optional<uint64_t> update_target(const Board& board, const Request& request) {
  const auto& take = request.take[0];
  if (take.bytes == 0) return std::nullopt;
  return board.memory(board.rank()).offset_of(take.data, take.bytes);
}

Where expose_update(Board& board, Call& call, CallSlot& slot) {
  const auto& request = call.request;
  const auto& give = request.give[0];
  const auto source = board.memory(board.rank()).offset_of(give.data, give.bytes);
  const auto target = update_target(board, request);
  if (!source || (!target && !request.takes_together && request.take[0].bytes > 0)) refuse_other_memory();
  slot.call.bytes = slot.call.largest = give.bytes;
  slot.call.offset = *source;
  target_in(slot) = target.value_or(kNowhere);
  return Where::Registered;
}

bool step_update(Board& board, Call& call) {
  const auto done = call.first_round + 1;
  if (call.reduced == 0) {
    Part(board, call).run();
    call.reduced = 1;
    board.raise(&RankWords::pulled, done);
    board.raise(&RankWords::reduced, done);
  }
  if (!board.all_reached(&RankWords::reduced, done)) return false;
  call.stage = Stage::Finished;
  return true;
}

}  // namespace lockstep::shm
