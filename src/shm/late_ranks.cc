#include "shm/late_ranks.h"

#include <algorithm>
#include <iterator>

namespace lockstep::shm {

namespace {

template <class Predicate>
std::vector<int> other_ranks_where(const Board& board, Predicate&& matches) {
  std::vector<int> ranks;
  for (int rank = 0; rank < board.world_size(); ++rank) {
    if (rank != board.rank() && matches(rank)) ranks.push_back(rank);
  }
  return ranks;
}

// The progress of one call's rounds, from the ranks' counters.
class Rounds {
 public:
  Rounds(const Board& board, const Call& call) : board_(board), call_(call) {}

  // Whether the next step of this rank depends on no other rank.
  bool can_advance(int rank) const { return can_stage(rank) || can_reduce(rank) || can_pull(rank); }

 private:
  uint64_t end() const { return call_.first_round + call_.rounds; }
  // A counter may be lower than the call's first round, because not all calls raise it.
  uint64_t reached(Board::Counter counter, int rank) const {
    return std::max(board_.read(counter, rank), call_.first_round);
  }
  bool all_staged(uint64_t round) const {
    return std::all_of(call_.stagers.begin(), call_.stagers.end(),
                       [&](int rank) { return board_.read(&RankWords::staged, rank) > round; });
  }

  bool can_stage(int rank) const {
    if (std::find(call_.stagers.begin(), call_.stagers.end(), rank) == call_.stagers.end()) return false;
    const auto next = reached(&RankWords::staged, rank);
    return next < end() &&
           (next < kStagingSlots || board_.all_reached(&RankWords::pulled, next - kStagingSlots + 1));
  }
  bool can_reduce(int rank) const {
    if (call_.algorithm != Algorithm::Parts) return false;
    const auto next = reached(&RankWords::reduced, rank);
    return next < end() && all_staged(next);
  }
  bool can_pull(int rank) const {
    const auto next = reached(&RankWords::pulled, rank);
    if (next >= end()) return false;
    if (!is_taker(call_.request, rank)) return true;  // takes nothing, and has not raised the counter yet
    return call_.algorithm == Algorithm::Parts ? board_.all_reached(&RankWords::reduced, next + 1)
                                               : all_staged(next);
  }

  const Board& board_;
  const Call& call_;
};

}  // namespace

const CallSlot& last_call(const Board& board, int rank) {
  const CallSlot* last = nullptr;
  for (uint64_t number = 0; number < kCallsInFlight; ++number) {
    const auto& slot = board.call(rank, number);
    if (last == nullptr || slot.call.number.load() > last->call.number.load()) last = &slot;
  }
  return *last;
}

std::vector<int> absent_ranks(const Board& board, uint64_t number) {
  const auto last_number = [&](int rank) { return last_call(board, rank).call.number.load(); };
  auto absent = other_ranks_where(board, [&](int rank) { return last_number(rank) <= number; });
  const auto waits_for_another = [&](int rank) {
    const auto last = last_number(rank);
    if (board.read(&RankWords::finished, rank) >= last) return false;
    return std::any_of(absent.begin(), absent.end(), [&](int other) { return last_number(other) < last; });
  };
  std::vector<int> blocking;
  std::copy_if(absent.begin(), absent.end(), std::back_inserter(blocking),
               [&](int rank) { return !waits_for_another(rank); });
  return blocking;
}

std::vector<int> late_ranks(const Board& board, const Call& call) {
  auto unfinished = other_ranks_where(
      board, [&](int rank) { return board.read(&RankWords::finished, rank) <= call.number; });
  // A rank that only has to read can do so as soon as all ranks have arrived.
  if (call.stage != Stage::Running) return unfinished;
  std::vector<int> blocking;
  if (call.algorithm == Algorithm::Claims) {
    blocking = other_ranks_where(
        board, [&](int rank) { return board.read(&RankWords::working, rank) == call.number + 1; });
  } else if (call.algorithm == Algorithm::Update) {
    blocking = other_ranks_where(
        board, [&](int rank) { return board.read(&RankWords::reduced, rank) <= call.first_round; });
  } else if (call.rounds != 0) {
    const Rounds rounds(board, call);
    blocking = other_ranks_where(board, [&](int rank) { return rounds.can_advance(rank); });
  }
  // The call has no rounds, or the ranks are between two steps.
  return blocking.empty() ? unfinished : blocking;
}

}  // namespace lockstep::shm
