#include "shm/endpoint.h"

#include <algorithm>
#include <fmt/format.h>
#include <sched.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/hints.h"
#include "shm/all_reduce.h"
#include "shm/arrange.h"
#include "shm/bell.h"
#include "shm/exchange.h"
#include "shm/mismatch.h"
#include "shm/started.h"
#include "shm/update.h"

namespace lockstep::shm {

namespace {

// Attempts to advance between two reads of the clock, with the lock held: a few microseconds.
constexpr int kTriesPerClockRead = 64;
constexpr auto kBetweenQuestions = std::chrono::milliseconds(100);
constexpr int kTriesWithoutPause = 3;  // the first ones, for words that are just being written

void write_facts(const auto& call, CallWords& words) {
  words.count = call.count;
  words.root = call.root;
  words.kind = static_cast<uint8_t>(call.kind);
  words.dtype = static_cast<uint8_t>(call.dtype);
  words.op = static_cast<uint8_t>(call.op);
}

// What the other ranks compare with their own call.
void describe_call(const Request& request, CallWords& words) {
  if (request.part_of != nullptr) {
    write_facts(*request.part_of, words);
  } else {
    write_facts(request, words);
  }
}

bool any_overlaps(const comm::Pieces& some, const comm::Pieces& others) {
  for (const auto& a : some) {
    for (const auto& b : others) {
      if (comm::common(a, b).bytes > 0) return true;
    }
  }
  return false;
}

}  // namespace

// ---- Starting

void Endpoint::throw_if_failed() const {
  if (failure_) std::rethrow_exception(failure_->error);
}

// Moving a tensor copies it, so nothing may be writing to it: a call that was started before, and whose Work
// nobody has waited for yet.
void Endpoint::notice(const Call& call) {
  const auto piece = given(call.request);
  for (const auto* earlier = first_; earlier != nullptr; earlier = earlier->next) {
    if (earlier->prepare) return;  // its tensors are not known yet
    if (any_overlaps(earlier->request.take, {piece})) return;
  }
  relocated_->notice(call.request.storage, piece);
}

void Endpoint::enqueue(Call& call) {
  if (call.request.storage) {
    notice(call);
    call.request.storage.reset();  // it would keep the memory as long as the caller keeps the Work
  }
  // Written under the lock only, so an atomic addition is not needed.
  call.number = next_number_.load(std::memory_order_relaxed);
  next_number_.store(call.number + 1, std::memory_order_relaxed);
  call.next = nullptr;
  (last_ != nullptr ? last_->next : first_) = &call;
  last_ = &call;
  if (to_arrive_ == nullptr) to_arrive_ = &call;
  call.issued_in_other_lane = mine_in_other_lane_.issued.value.load(std::memory_order_relaxed);
  // Release, paired with the acquire loads in check_other_lane(): a rank that sees a later call of this rank
  // in the other lane also sees this one.
  mine_.issued.value.store(call.number + 1, std::memory_order_release);
}

void Endpoint::run(Request& request) {
  if (comm::is_message(request)) {
    Message message(request);
    run(message);
  } else {
    Call call(request);
    run(call);
  }
}

void Endpoint::update(Request& request, comm::Transform& transform) {
  request.kind = Kind::Update;
  Call call(request);
  call.transform = &transform;
  run(call);
}

std::vector<comm::Range> Endpoint::updated_ranges(const Request& request) const {
  const auto element_bytes = c10::elementSize(request.dtype);
  return {updated_part(rank_, world_size_, static_cast<int64_t>(request.give[0].bytes / element_bytes),
                       element_bytes)};
}

std::shared_ptr<Work::State> Endpoint::start(Request&& request) {
  if (comm::is_message(request)) return Started<Message>::start(shared_from_this(), std::move(request));
  return Started<Call>::start(shared_from_this(), std::move(request));
}

void Endpoint::run(Call& call) {
  throw_if_forked();
  Lock lock(mutex_);
  throw_if_failed();
  enqueue(call);
  wait(lock, call, std::nullopt);
  lock.unlock();
  if (call.error) std::rethrow_exception(call.error);
}

bool Endpoint::run_unless(Call& call, const std::function<bool()>& hopeless) {
  throw_if_forked();
  Lock lock(mutex_);
  throw_if_failed();
  enqueue(call);
  while (wait(lock, call, Clock::now() + kBetweenQuestions) == WaitResult::TimedOut) {
    lock.unlock();
    if (hopeless()) return false;
    lock.lock();
  }
  lock.unlock();
  if (call.error) std::rethrow_exception(call.error);
  return true;
}

void Endpoint::run(Message& message) {
  throw_if_forked();
  Lock lock(mutex_);
  throw_if_failed();
  add(message);
  wait(lock, message, std::nullopt);
  lock.unlock();
  if (message.error) std::rethrow_exception(message.error);
}

void Endpoint::start(Call& call) {
  throw_if_forked();
  Lock lock(mutex_);
  throw_if_failed();
  call.deadline = Clock::now() + (call.timeout.count() > 0 ? call.timeout : timeout_);
  if (call.predecessor != nullptr) {
    call.predecessor->timeout = call.timeout;
    call.predecessor->deadline = call.deadline;
    enqueue(*call.predecessor);
  }
  enqueue(call);
  ++polls_;
  progress(Effort::OwnPart);
  if (!call.complete) ensure_background();
  notify(lock);
}

void Endpoint::add(Message& message) {
  message.names = &names_;
  if (messages_) {
    messages_->add(message);
  } else {
    waiting_messages_.push_back(&message);
  }
}

void Endpoint::start(Message& message) {
  throw_if_forked();
  Lock lock(mutex_);
  throw_if_failed();
  message.deadline = Clock::now() + (message.timeout.count() > 0 ? message.timeout : timeout_);
  add(message);
  ++polls_;
  progress(Effort::OwnPart);
  if (!message.complete) ensure_background();
  notify(lock);
}

void Endpoint::interrupt(Operation& operation) {
  if (segment_->inherited()) return;
  const Lock lock(mutex_);
  if (operation.complete) return;
  operation.interrupted = true;
  ring(mine_.bell);
}

void Endpoint::fail(const std::string& kind, const std::string& text) noexcept {
  if (segment_->inherited()) return;
  Lock lock(mutex_);
  set_failure(kind, text);
  notify(lock);
}

void Endpoint::add_owner() {
  if (segment_->inherited()) return;
  const Lock lock(mutex_);
  ++owners_;
}

void Endpoint::retire() {
  if (segment_->inherited()) return;
  const Lock lock(mutex_);
  if (--owners_ > 0) return;
  cancelled_ = idle();  // with operations under way, connecting continues
  background_wakeup_.notify_all();
}

// ---- Progress

bool Endpoint::progress(Effort effort) {
  if (!board_ || failure_) return false;
  try {
    bool moved = arrive();
    moved |= run_calls(effort);
    if (arrived_since_ || finished_before_) wake_sleepers();
    if (!exposed_.empty()) moved |= release_exposed();
    if (messages_ && !messages_->idle()) {
      moved |= messages_->step(received_);
      for (auto* operation : received_) complete(*operation);
      received_.clear();
    }
    return moved;
  } catch (const Disagreement& disagreement) {
    set_failure("MismatchError",
                base::compose({.what = "the ranks do not make the same call",
                               .where = where(disagreement.in_message ? nullptr : first_),
                               .evidence = fmt::format("this rank is in {}, {} in {}", disagreement.here,
                                                       name_of(disagreement.rank), disagreement.there),
                               .hint = base::kSameCalls}));
  } catch (const FailedPeer& failed) {
    adopt_failure(failed.rank, board_->words(failed.rank));
  } catch (const Error& error) {
    set_failure(std::string(error.kind()), error.what(), error.culprits());
  } catch (const std::exception& error) {
    set_failure("Error", error.what());
  }
  return true;
}

// Other ranks read and write what this rank gives, from its arrival on. So it must not be what an earlier
// call has still to write; nor may this call write what others have still to read. Such calls are under way
// together only if nobody has waited for the first one.
bool Endpoint::must_wait_for_earlier(const Call& call) const {
  const auto conflicts = [&](const Call& earlier) {
    return any_overlaps(earlier.request.take, call.request.give) ||
           any_overlaps(earlier.request.take, call.request.take) ||
           any_overlaps(earlier.request.give, call.request.take);
  };
  for (const auto* earlier = first_; earlier != &call; earlier = earlier->next) {
    if (conflicts(*earlier)) return true;
  }
  return std::any_of(exposed_.begin(), exposed_.end(),
                     [&](const Call* earlier) { return conflicts(*earlier); });
}

bool Endpoint::arrive() {
  bool moved = false;
  while (to_arrive_ != nullptr) {
    auto& call = *to_arrive_;
    // A rank arrives at a barrier when all its earlier calls are complete.
    if (call.request.kind == Kind::Barrier && (&call != first_ || !exposed_.empty())) return moved;
    if (call.prepare) {
      if (&call != first_) return moved;
      call.request = call.prepare();
      call.request.storage.reset();
      call.prepare = nullptr;
    }
    if (must_wait_for_earlier(call)) return moved;
    // The slot can be reused when all ranks have finished the call that used it before.
    if (call.number - all_finished_ >= kCallsInFlight) {
      all_finished_ = board_->least(&RankWords::finished);
      if (call.number - all_finished_ >= kCallsInFlight) return moved;
    }
    auto& slot = board_->call(rank_, call.number);
    slot.call.where = expose(*board_, *relocated_, call, slot);
    describe_call(call.request, slot.call);
    // Without a full fence, which would delay reading the other ranks' slots until this line has been fetched
    // from their caches. wake_sleepers() has the fence.
    slot.call.number.store(call.number + 1, std::memory_order_release);
    call.stage = Stage::Arrived;
    if (!arrived_since_) arrived_since_ = call.number;
    to_arrive_ = call.next;
    moved = true;
  }
  return moved;
}

// Wakes the threads that sleep until all ranks have arrived at a call or finished it, if this rank may have
// been the last one. Runs before this thread waits or returns; one fence serves all calls.
void Endpoint::wake_sleepers() {
  full_fence();
  if (board_->has_sleepers()) {
    // No thread sleeps for a later call before all ranks have arrived at the first one.
    const bool all_arrived = arrived_since_ && board_->all_arrived(*arrived_since_);
    const bool all_finished =
        finished_before_ && board_->all_reached(&RankWords::finished, *finished_before_ + 1);
    if (all_arrived || all_finished) board_->ring_all();
  }
  arrived_since_.reset();
  finished_before_.reset();
}

bool Endpoint::run_calls(Effort effort) {
  bool moved = false;
  while (first_ != nullptr && first_->stage != Stage::Queued) {
    auto& call = *first_;
    if (call.stage == Stage::Arrived) {
      if (!board_->all_arrived(call.number)) return moved;
      begin(*board_, call, next_round_);
      call.stage = Stage::Running;
      moved = true;
    }
    switch (call.algorithm) {
      case Algorithm::Exchange:
        moved |= step_exchange(*board_, call);
        break;
      case Algorithm::Claims:
        moved |= step_claims(*board_, call, effort);
        break;
      case Algorithm::Parts:
        moved |= step_parts(*board_, call);
        break;
      case Algorithm::Update:
        moved |= step_update(*board_, call);
        break;
    }
    if (call.stage != Stage::Finished) return moved;
    if (call.reads_registered) board_->throw_if_peer_failed();
    first_ = call.next;
    if (first_ == nullptr) last_ = nullptr;
    auto& finished = board_->words(rank_).finished.value;
    if (!finished_before_) finished_before_ = finished.load(std::memory_order_relaxed);
    finished.store(call.number + 1, std::memory_order_release);
    // The next call writes there: fetch the line from the other ranks' caches in advance.
    __builtin_prefetch(&board_->call(rank_, call.number + 1), 1);
    if (call.exposed) {
      exposed_.push_back(&call);
    } else {
      complete_call(call);
    }
  }
  return moved;
}

bool Endpoint::release_exposed() {
  const auto before = exposed_.size();
  std::erase_if(exposed_, [&](Call* call) {
    if (!board_->all_reached(&RankWords::finished, call->number + 1)) return false;
    complete_call(*call);
    return true;
  });
  return exposed_.size() != before;
}

void Endpoint::complete(Operation& operation, std::exception_ptr error) {
  operation.error = std::move(error);
  operation.complete = true;
  if (operation.owner != nullptr) {
    operation.ended = Clock::now();
    to_notify_.push_back(operation.owner);
  }
  ring(mine_.bell);  // another thread of this rank may be sleeping until it is complete
}

void Endpoint::complete_call(Call& call, std::exception_ptr error) {
  if (call.relocated) relocated_->leave(given(call.request), !error && call.algorithm == Algorithm::Claims);
  complete(call, std::move(error));
}

void Endpoint::notify(Lock& lock) {
  while (!to_notify_.empty()) {
    const auto owners = std::exchange(to_notify_, {});
    lock.unlock();
    for (auto* owner : owners) owner->completed();
    lock.lock();
  }
}

void Endpoint::defer(Completion& completion) {
  const Lock lock(mutex_);
  to_conclude_.push_back(&completion);
  ensure_background();
  background_wakeup_.notify_all();
}

// ---- Waiting

Endpoint::WaitResult Endpoint::wait(Operation& operation, std::optional<Clock::time_point> until) {
  throw_if_forked();
  Lock lock(mutex_);
  return wait(lock, operation, until);
}

Endpoint::WaitResult Endpoint::wait(Lock& lock, Operation& operation,
                                    std::optional<Clock::time_point> until) {
  auto waited = WaitResult::Complete;
  ++waiting_;
  constexpr Clock::time_point kUnset{};
  auto spin_until = kUnset;
  while (!operation.complete) {
    if (progress()) {
      spin_until = kUnset;
      notify(lock);
      continue;
    }
    if (spin_.count() > 0) {
      bool moved = false;
      for (int i = 0; i < kTriesPerClockRead && !moved; ++i) {
        if (i >= kTriesWithoutPause) relax();
        moved = progress();
      }
      if (moved) {
        notify(lock);
        continue;
      }
      const auto now = Clock::now();
      if (spin_until == kUnset) spin_until = now + spin_;
      if (now < spin_until) {
        // Gives other threads of this rank a chance to take the lock and, if another rank may need this CPU,
        // that one. Otherwise it does not yield: beside other processes, that could cost a time slice.
        lock.unlock();
        if (crowded_) {
          ::sched_yield();
        } else {
          relax();
        }
        lock.lock();
        continue;
      }
    }
    if (std::exchange(operation.interrupted, false)) {
      waited = WaitResult::Interrupted;
      break;
    }
    if (until && Clock::now() >= *until) {
      waited = WaitResult::TimedOut;
      break;
    }
    sleep(lock, until);
    notify(lock);
  }
  --waiting_;
  notify(lock);
  // The background thread takes over what other threads have started.
  if (waiting_ == 0 && has_background_ && !idle()) background_wakeup_.notify_all();
  return waited;
}

bool Endpoint::poll(const Operation& operation) {
  if (segment_->inherited()) return operation.complete;
  Lock lock(mutex_);
  ++polls_;
  if (!operation.complete) progress(Effort::OwnPart);
  // Read before the owner is notified, because that may destroy the operation.
  const bool complete = operation.complete;
  notify(lock);
  return complete;
}

}  // namespace lockstep::shm
