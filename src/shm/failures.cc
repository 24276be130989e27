// How an endpoint detects failures: a peer that failed, one that has ended, one that is late.
#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <string_view>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/hints.h"
#include "base/host.h"
#include "base/log.h"
#include "comm/diagnose.h"
#include "shm/bell.h"
#include "shm/endpoint.h"
#include "shm/late_ranks.h"
#include "shm/mismatch.h"
#include "shm/peer_end.h"
#include "shm/update.h"

namespace lockstep::shm {

namespace {

using namespace std::chrono_literals;

// A closed connection does not wake a sleeping thread, so it checks by itself this often.
constexpr auto kCheckInterval = 20ms;

std::exception_ptr make_error(const std::string& kind, const std::string& text,
                              const std::vector<int>& culprits) {
  try {
    base::throw_kind(kind, text, culprits);
  } catch (...) {
    return std::current_exception();
  }
}

const char* hint_for(const std::string& end) {
  if (end.empty()) return base::kItEndedFirstOrMadeFewerSteps;
  return end == kExitedNormally ? base::kItMadeFewerSteps : base::kItEndedFirst;
}

void copy_text(char* to, size_t room, const std::string& text) {
  const size_t length = std::min(room - 1, text.size());
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

}  // namespace

void Endpoint::sleep(Lock& lock, std::optional<Clock::time_point> until) {
  const Sleep sleep(mine_.bell);
  if (progress()) return;
  auto longest = std::chrono::duration_cast<std::chrono::microseconds>(kCheckInterval);
  if (until) {
    const auto left = std::chrono::ceil<std::chrono::microseconds>(*until - Clock::now());
    longest = std::clamp(left, 0us, longest);
  }
  lock.unlock();
  sleep.until_rung(longest);
  lock.lock();
  look_for_errors();
}

void Endpoint::look_for_errors() {
  if (failure_ || idle()) return;
  const auto now = Clock::now();
  if (now - last_check_ < kCheckInterval / 2) return;
  last_check_ = now;
  if (board_) {
    look_for_failed_ranks();
    if (!failure_) check_other_lane();
    if (!failure_) look_for_ended_ranks();
  }
  if (!failure_) look_for_timeouts();
}

void Endpoint::look_for_failed_ranks() {
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto& theirs = board_->words(rank).failure;
    if (rank == rank_ || theirs.present.load(std::memory_order_seq_cst) == 0) continue;
    if (progress()) return;  // it may have done its part before it failed
    // If it failed because another rank ended, report the end of that rank.
    look_for_ended_ranks();
    if (failure_) return;
    adopt_failure(rank, board_->words(rank));
    return;
  }
}

// Calls are made in one order over both lanes. If a rank has made more calls in the other lane than this rank
// had made before this call, and has not made this call, the two ranks make different calls.
void Endpoint::check_other_lane() {
  // After a failure in the other lane, the ranks' counts may differ.
  if (first_ == nullptr || first_->knows_of_failure) return;
  const auto& call = *first_;
  // The background thread of the other lane may have noticed a failure that the caller does not know of.
  if (const auto& own = mine_in_other_lane_.failure; lane_ == Lane::Control && own.present.load() != 0) {
    look_for_ended_ranks();  // which knows the culprits
    if (!failure_) set_failure(own.kind, own.text);
    return;
  }
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_ || board_->has_arrived(rank, call.number)) continue;
    const auto& there = other_lane_->words(rank);
    // In this order: if the rank made this call before the one in the other lane, both counts are visible
    // (acquire, paired with the release store in enqueue()).
    const auto theirs = there.issued.value.load(std::memory_order_acquire);
    if (board_->words(rank).issued.value.load(std::memory_order_acquire) > call.number) continue;
    if (theirs > call.issued_in_other_lane) {
      const auto& slot = other_lane_->call(rank, call.issued_in_other_lane);
      set_failure(
          "MismatchError",
          base::compose({.what = "the ranks do not make the same call",
                         .where = where(&call),
                         .evidence = fmt::format(
                             "this rank is in {}, {} in {}", description_of(call), name_of(rank),
                             slot.call.number.load() == call.issued_in_other_lane + 1 ? describe(slot)
                                                                                      : "another call"),
                         .hint = base::kSameCalls}));
      return;
    }
    if (lane_ == Lane::Control && there.failure.present.load() != 0) {
      adopt_failure(rank, there);
      return;
    }
  }
}

void Endpoint::adopt_failure(int rank, const RankWords& words) {
  const auto& theirs = words.failure;
  // A rank that has timed out was waiting, like this one. Report the ranks that both were waiting for.
  if (first_ != nullptr && theirs.kind == std::string_view("TimeoutError")) {
    if (const auto blocking = describe_blocking_ranks(*first_); !blocking.empty()) {
      set_failure(theirs.kind,
                  base::compose({.what = fmt::format("{} failed", description_of(*first_)),
                                 .where = where(first_),
                                 .evidence = "Timed out, on another rank first" + blocking,
                                 .hint = base::kLate}),
                  blocking_ranks(*first_));
      return;
    }
  }
  set_failure(theirs.kind, base::compose({.what = fmt::format("{} failed", name_of(rank)),
                                          .where = where(first_),
                                          .evidence = fmt::format("its error: {}", theirs.text)}));
}

// What a rank has published in either lane. A rank that has failed in one lane takes no part in the other.
const FailureWords* Endpoint::failure_of(int rank) const {
  for (const auto* lane : {&*board_, &*other_lane_}) {
    const auto& failure = lane->words(rank).failure;
    if (failure.present.load(std::memory_order_seq_cst) != 0) return &failure;
  }
  return nullptr;
}

void Endpoint::look_for_ended_ranks() {
  auto ended_ranks = mesh_->ended_ranks();
  // Everything that they wrote before they ended is visible now.
  if (ended_ranks.empty() || progress() || failure_) return;

  // Ranks without a published failure first: the others may have failed because of them.
  std::stable_partition(ended_ranks.begin(), ended_ranks.end(),
                        [&](int rank) { return failure_of(rank) == nullptr; });
  const bool alone = ended_ranks.size() + 1 == static_cast<size_t>(world_size_);
  const auto is_unfinished = [&](int rank, const Call& call) {
    return board_->read(&RankWords::finished, rank) <= call.number;
  };
  for (const int rank : ended_ranks) {
    std::string blocked;
    const Call* call = nullptr;
    if (first_ != nullptr && is_unfinished(rank, *first_)) call = first_;
    for (const auto* exposed : exposed_) {
      if (is_unfinished(rank, *exposed)) call = exposed;
    }
    if (call != nullptr) blocked = description_of(*call);
    for (const auto* message : messages_ ? messages_->under_way() : std::vector<Message*>{}) {
      if (message->peer == rank || (message->peer == kAnyRank && alone)) blocked = message->describe();
    }
    if (blocked.empty()) continue;

    if (const auto* failed = failure_of(rank)) {
      set_failure(failed->kind, base::compose({.what = fmt::format("{} failed and has ended", name_of(rank)),
                                               .where = where(call),
                                               .evidence = fmt::format("its error: {}", failed->text)}));
      return;
    }
    const auto end = mesh_->describe_end(rank, base::Deadline::in(kBetweenCloseAndEnd));
    set_failure("PeerLostError",
                base::compose(
                    {.what = fmt::format("{} failed", blocked),
                     .where = where(call),
                     .evidence = fmt::format("{} has ended{}{}", name_of(rank), end.empty() ? "" : ": ", end),
                     .hint = hint_for(end)}),
                {rank});
    return;
  }
}

void Endpoint::look_for_timeouts() {
  const auto now = Clock::now();
  const auto is_late = [&](Operation& operation) {
    // A blocking operation reads the clock only when it has to wait.
    if (operation.deadline == Clock::time_point{}) {
      operation.deadline = now + (operation.timeout.count() > 0 ? operation.timeout : timeout_);
    }
    return now >= operation.deadline;
  };
  const auto seconds = [&](const Operation& operation) {
    return (operation.timeout.count() > 0 ? operation.timeout : timeout_).count() / 1000.0;
  };
  std::vector<Call*> calls = exposed_;
  if (first_ != nullptr) calls.push_back(first_);
  for (auto* call : calls) {
    if (!is_late(*call)) continue;
    auto state = board_ ? describe_blocking_ranks(*call) : "; not all ranks are connected";
    if (state.empty()) state = "; all ranks have arrived";
    set_failure("TimeoutError",
                base::compose({.what = fmt::format("{} failed", description_of(*call)),
                               .where = where(call),
                               .evidence = fmt::format("Timed out after {:.1f} s{}", seconds(*call), state),
                               .hint = base::kLate}),
                board_ ? blocking_ranks(*call) : std::vector<int>{});
    return;
  }
  auto messages = waiting_messages_;
  if (messages_) messages = messages_->under_way();
  for (auto* message : messages) {
    if (!is_late(*message)) continue;
    std::string state = "not all ranks are connected";
    if (board_ && message->peer == kAnyRank) state = "no rank sent it";
    if (board_ && message->peer != kAnyRank) {
      state = fmt::format("{} did not {} it: {}", name_of(message->peer),
                          message->outgoing ? "receive" : "send", describe_last_call(message->peer));
    }
    set_failure(
        "TimeoutError",
        base::compose({.what = fmt::format("{} failed", message->describe()),
                       .where = where(nullptr),
                       .evidence = fmt::format("Timed out after {:.1f} s; {}", seconds(*message), state),
                       .hint = base::kLate}),
        board_ && message->peer != kAnyRank ? std::vector<int>{message->peer} : std::vector<int>{});
    return;
  }
}

void Endpoint::set_failure(const std::string& kind, const std::string& text,
                           const std::vector<int>& culprits) {
  if (failure_) return;
  failure_ = {kind, text, make_error(kind, text, names_.of(culprits))};
  base::log_debug("{}: {}", kind, text);
  if (board_) publish_failure();
  if (board_) withdraw_writable_memory();
  for (auto* operation : std::exchange(received_, {})) complete(*operation);
  for (auto* call : exposed_) complete_call(*call, failure_->error);
  exposed_.clear();
  while (first_ != nullptr) {
    auto* call = first_;
    first_ = call->next;
    complete_call(*call, failure_->error);
  }
  last_ = to_arrive_ = nullptr;
  for (auto* message : std::exchange(waiting_messages_, {})) complete(*message, failure_->error);
  if (!messages_) return;
  for (auto* message : messages_->remove_all()) complete(*message, failure_->error);
}

void Endpoint::publish_failure() {
  auto& mine = board_->words(rank_).failure;
  copy_text(mine.kind, sizeof(mine.kind), failure_->kind);
  copy_text(mine.text, sizeof(mine.text), failure_->text);
  mine.present.store(1, std::memory_order_seq_cst);
  board_->ring_all();
}

// The memory of all-reduces with registered tensors, and of updates, that are not complete: a rank that saw
// this one arrive and was stopped in a chunk writes the rest of the chunk when it continues, at any later
// time.
void Endpoint::withdraw_writable_memory() {
  for (const auto* call = first_; call != to_arrive_; call = call->next) {
    if (call->request.kind == Kind::Update) {
      const auto target = update_target(*board_, call->request);
      if (target) memory_->withdraw({*target, call->request.take[0].bytes});
      continue;
    }
    const auto& words = board_->call(rank_, call->number).call;
    if (call->request.kind != Kind::AllReduce || words.where != Where::Registered) continue;
    memory_->withdraw({words.offset, words.bytes});
  }
}

std::vector<int> Endpoint::absent(uint64_t number) {
  const Lock lock(mutex_);
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank != rank_ && (!board_ || last_call(*board_, rank).call.number.load() <= number))
      ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> Endpoint::ended() {
  const Lock lock(mutex_);
  return mesh_->ended_ranks();
}

// ---- Texts

std::string Endpoint::where(const Call* call) const {
  auto text =
      fmt::format("rank {}/{}, host {}, {}", names_.of(rank_), names_.world_size, base::host_name(), group_);
  if (call != nullptr) {
    const auto* const whole = call->request.part_of;
    text += fmt::format(", collective #{}", whole != nullptr ? whole->number : call->number + 1);
  }
  return text + ", backend " + names_.backend;
}

std::string Endpoint::description_of(const Call& call) const {
  if (!board_ || call.stage == Stage::Queued) return comm::pattern_of(comm::facts_of(call.request).kind).name;
  return describe(board_->call(rank_, call.number));
}

std::string Endpoint::name_of(int rank) const {
  const auto& facts = mesh_->peers().at(rank).facts;
  return fmt::format("rank {} (pid {}, host {})", names_.of(rank), facts.pid, facts.host);
}

std::string Endpoint::describe_last_call(int rank) const {
  const auto& last = last_call(*board_, rank);
  const uint64_t arrived = last.call.number.load();
  if (arrived == 0) return "it has made no collective call in this group";
  const auto call = comm::numbered(names_.of_parts() ? 0 : arrived, describe(last));
  return fmt::format("its last collective was {}, which it {}", call,
                     board_->read(&RankWords::finished, rank) >= arrived ? "finished" : "has not finished");
}

std::vector<int> Endpoint::blocking_ranks(const Call& call) const {
  auto ranks = absent_ranks(*board_, call.number);
  if (ranks.empty()) ranks = late_ranks(*board_, call);
  // A rank that has failed gave up waiting for another one.
  std::erase_if(ranks, [&](int rank) {
    return board_->words(rank).failure.present.load(std::memory_order_seq_cst) != 0;
  });
  return ranks;
}

std::string Endpoint::describe_blocking_ranks(const Call& call) const {
  const bool all_arrived = absent_ranks(*board_, call.number).empty();
  std::string text;
  for (const int rank : blocking_ranks(call)) {
    text += all_arrived ? fmt::format("; {} has arrived, but has not done its part", name_of(rank))
                        : fmt::format("; {} has not arrived: {}", name_of(rank), describe_last_call(rank));
  }
  return text;
}

}  // namespace lockstep::shm
