#include "shm/endpoint.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "shm/all_reduce.h"
#include "shm/bell.h"
#include "shm/exchange.h"
#include "shm/mismatch.h"
#include "shm/process_memory.h"
#include "shm/started.h"

namespace lockstep::shm {

namespace {

using namespace std::chrono_literals;

// Tries between two looks at the clock, with the lock held: a few microseconds.
constexpr int kTries = 64;
constexpr int kHastyTries = 3;  // the first ones, for news that is on its way

}  // namespace

// ---- Starting

void Endpoint::refuse_if_failed() const {
  if (failure_) std::rethrow_exception(failure_->error);
}

void Endpoint::enqueue(Call& call) {
  // Written under the lock only, so there is no need for an atomic addition.
  call.number = next_number_.load(std::memory_order_relaxed);
  next_number_.store(call.number + 1, std::memory_order_relaxed);
  call.next = nullptr;
  (last_ != nullptr ? last_->next : first_) = &call;
  last_ = &call;
  if (to_arrive_ == nullptr) to_arrive_ = &call;
  call.other_lane = mine_in_other_lane_.issued.value.load(std::memory_order_relaxed);
  // Release: whoever sees it in the other lane's words sees it here (look_into_other_lane).
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

std::shared_ptr<Work::State> Endpoint::start(Request&& request) {
  if (comm::is_message(request)) return Started<Message>::start(shared_from_this(), std::move(request));
  return Started<Call>::start(shared_from_this(), std::move(request));
}

void Endpoint::run(Call& call) {
  refuse_in_child();
  Lock lock(mutex_);
  refuse_if_failed();
  enqueue(call);
  wait(lock, call, std::nullopt);
  lock.unlock();
  if (call.error) std::rethrow_exception(call.error);
}

void Endpoint::run(Message& message) {
  refuse_in_child();
  Lock lock(mutex_);
  refuse_if_failed();
  add(message);
  wait(lock, message, std::nullopt);
  lock.unlock();
  if (message.error) std::rethrow_exception(message.error);
}

void Endpoint::start(Call& call) {
  refuse_in_child();
  Lock lock(mutex_);
  refuse_if_failed();
  call.deadline = Clock::now() + (call.timeout.count() > 0 ? call.timeout : timeout_);
  if (call.before != nullptr) {
    call.before->timeout = call.timeout;
    call.before->deadline = call.deadline;
    enqueue(*call.before);
  }
  enqueue(call);
  ++visits_;
  progress(Effort::OwnPart);
  if (!call.complete) need_background();
  notify(lock);
}

void Endpoint::add(Message& message) {
  if (messages_) {
    messages_->add(message);
  } else {
    waiting_messages_.push_back(&message);
  }
}

void Endpoint::start(Message& message) {
  refuse_in_child();
  Lock lock(mutex_);
  refuse_if_failed();
  message.deadline = Clock::now() + (message.timeout.count() > 0 ? message.timeout : timeout_);
  add(message);
  ++visits_;
  progress(Effort::OwnPart);
  if (!message.complete) need_background();
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
  retired_ = true;
  cancelled_ = idle();  // a rank with calls under way may still meet the others
  background_.notify_all();
}

// ---- Progress

bool Endpoint::progress(Effort effort) {
  if (!board_ || failure_) return false;
  try {
    bool moved = arrive();
    moved |= run_calls(effort);
    if (arrived_since_ || finished_before_) announce();
    if (!exposed_.empty()) moved |= release_exposed();
    if (messages_ && !messages_->idle()) {
      moved |= messages_->step(received_);
      for (auto* operation : received_) complete(*operation);
      received_.clear();
    }
    return moved;
  } catch (const Disagreement& disagreement) {
    set_failure(
        "MismatchError",
        base::compose({.what = "the ranks do not make the same call",
                       .where = where(disagreement.in_message ? nullptr : first_),
                       .evidence = fmt::format("this rank is in {}, {} in {}", disagreement.here,
                                               name_of(disagreement.rank), disagreement.there),
                       .hint = "all ranks must make the same calls in the same order, with tensors of the "
                               "same size and type"}));
  } catch (const FailedPeer& failed) {
    adopt_failure(failed.rank, board_->words(failed.rank));
  } catch (const Error& error) {
    set_failure(std::string(error.kind()), error.what(), error.culprits());
  } catch (const std::exception& error) {
    set_failure("Error", error.what());
  }
  return true;
}

bool Endpoint::arrive() {
  bool moved = false;
  while (to_arrive_ != nullptr) {
    auto& call = *to_arrive_;
    // A barrier says that all before it is done.
    if (call.request.kind == Kind::Barrier && (&call != first_ || !exposed_.empty())) return moved;
    if (call.prepare) {
      if (&call != first_) return moved;
      call.request = call.prepare();
      call.prepare = nullptr;
    }
    // The slot must not be read by anybody any more.
    if (call.number - all_finished_ >= kCallsInFlight) {
      all_finished_ = board_->least(&RankWords::finished);
      if (call.number - all_finished_ >= kCallsInFlight) return moved;
    }
    auto& slot = board_->call(rank_, call.number);
    slot.call.where = expose(*board_, call, slot);
    slot.call.count = call.request.count;
    slot.call.root = call.request.root;
    slot.call.kind = static_cast<uint8_t>(call.request.kind);
    slot.call.dtype = static_cast<uint8_t>(call.request.dtype);
    slot.call.op = static_cast<uint8_t>(call.request.op);
    // A full fence here would hold up the look at the others' slots until this one has been fetched from
    // their caches; announce() makes up for it.
    slot.call.number.store(call.number + 1, std::memory_order_release);
    call.stage = Stage::Arrived;
    if (!arrived_since_) arrived_since_ = call.number;
    to_arrive_ = call.next;
    moved = true;
  }
  return moved;
}

// Wakes those who sleep until all have arrived or finished somewhere, where this rank may have been the last:
// one fence for both, before this thread waits or leaves.
void Endpoint::announce() {
  full_fence();
  if (board_->anybody_sleeps()) {
    // Nobody can sleep in a later call before all have come to the first.
    const bool all_here = arrived_since_ && board_->all_arrived(*arrived_since_);
    const bool all_through =
        finished_before_ && board_->all_reached(&RankWords::finished, *finished_before_ + 1);
    if (all_here || all_through) board_->ring_all();
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
    switch (call.way) {
      case Way::Exchange:
        moved |= step_exchange(*board_, call);
        break;
      case Way::Claims:
        moved |= step_claims(*board_, call, effort);
        break;
      case Way::Parts:
        moved |= step_parts(*board_, call);
        break;
    }
    if (call.stage != Stage::Finished) return moved;
    if (call.reads_registered) board_->refuse_failed_peers();
    first_ = call.next;
    if (first_ == nullptr) last_ = nullptr;
    auto& finished = board_->words(rank_).finished.value;
    if (!finished_before_) finished_before_ = finished.load(std::memory_order_relaxed);
    finished.store(call.number + 1, std::memory_order_release);
    // The next call will write there: have the line come back from the others' caches meanwhile.
    __builtin_prefetch(&board_->call(rank_, call.number + 1), 1);
    if (call.exposed) {
      exposed_.push_back(&call);
    } else {
      complete(call);
    }
  }
  return moved;
}

bool Endpoint::release_exposed() {
  const auto before = exposed_.size();
  std::erase_if(exposed_, [&](Call* call) {
    if (!board_->all_reached(&RankWords::finished, call->number + 1)) return false;
    complete(*call);
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
  ring(mine_.bell);  // another thread of this rank may sleep for it
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
  need_background();
}

// ---- Waiting

Endpoint::Waited Endpoint::wait(Operation& operation, std::optional<Clock::time_point> until) {
  refuse_in_child();
  Lock lock(mutex_);
  return wait(lock, operation, until);
}

Endpoint::Waited Endpoint::wait(Lock& lock, Operation& operation, std::optional<Clock::time_point> until) {
  auto waited = Waited::Complete;
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
      for (int i = 0; i < kTries && !moved; ++i) {
        if (i >= kHastyTries) relax();
        moved = progress();
      }
      if (moved) {
        notify(lock);
        continue;
      }
      const auto now = Clock::now();
      if (spin_until == kUnset) spin_until = now + spin_;
      if (now < spin_until) {
        // Others of this rank get a chance.
        lock.unlock();
        relax();
        lock.lock();
        continue;
      }
    }
    if (std::exchange(operation.interrupted, false)) {
      waited = Waited::Interrupted;
      break;
    }
    if (until && Clock::now() >= *until) {
      waited = Waited::TimedOut;
      break;
    }
    sleep(lock, until);
    notify(lock);
  }
  --waiting_;
  notify(lock);
  // What others have under way is the background thread's again.
  if (waiting_ == 0 && has_background_ && !idle()) background_.notify_all();
  return waited;
}

bool Endpoint::poll(const Operation& operation) {
  if (segment_->inherited()) return operation.complete;
  Lock lock(mutex_);
  ++visits_;
  if (!operation.complete) progress(Effort::OwnPart);
  // Read before the owner is told: it may let go of the operation then.
  const bool complete = operation.complete;
  notify(lock);
  return complete;
}

}  // namespace lockstep::shm
