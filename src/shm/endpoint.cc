#include "shm/endpoint.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>
#include <system_error>
#include <thread>
#include <unistd.h>

#include <ATen/Parallel.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "base/log.h"
#include "shm/all_reduce.h"
#include "shm/bell.h"
#include "shm/exchange.h"
#include "shm/mismatch.h"
#include "tuning/topology.h"

namespace lockstep::shm {

namespace {

using namespace std::chrono_literals;

// How long a waiting rank keeps its core busy before it sleeps. Longer than the kernel takes to wake it.
constexpr auto kSpin = 100us;
// Tries between two looks at the clock, with the lock held: a few microseconds.
constexpr int kTries = 64;
constexpr int kHastyTries = 3;  // the first ones, for news that is on its way
// How often the attendant looks whether anybody attends to what is under way. A call that is waited for at
// once must not wake it, so it wakes by itself; after a while without any calls it rests until it is called.
constexpr auto kShortNap = 200us;
constexpr auto kLongNap = 800us;
constexpr int kNapsBeforeRest = 64;
// How long it leaves calls to threads that come by. Then it naps as long, too: every time that it wakes it
// takes the CPU from a thread that computes, its own rank's or another job's, and keeps the kernel from
// giving that time to the rank that is waited for.
constexpr auto kInlineNap = 5ms;

// That the ranks may use.
size_t cpus_of(const std::vector<Peer>& peers) {
  std::set<int> cpus;
  for (const auto& peer : peers) {
    for (const int cpu : tuning::parse_cpu_list(peer.facts.cpus)) cpus.insert(cpu);
  }
  return cpus.size();
}

// Whether calls that nobody waits for are left to the threads that make them, which come by again (poll):
// another thread would only take their CPU. LOCKSTEP_PROGRESS says otherwise.
bool are_carried_on_inline(bool has_spare_cpus) {
  const auto wanted = base::env_string("LOCKSTEP_PROGRESS");
  if (wanted == "inline") return true;
  if (wanted == "thread") return false;
  return !has_spare_cpus;
}

Control& control_in(Segment& segment, int world_size) {
  return *reinterpret_cast<Control*>(segment.at(0, first_extent_bytes(world_size)) + kControlAt);
}

int checked_world(int rank, int world_size) {
  if (rank >= 0 && rank < world_size && world_size <= kMaxWorld) return world_size;
  throw UsageError(base::compose(
      {.what = "a shared-memory group cannot be made",
       .evidence = "rank is " + std::to_string(rank) + ", world size is " + std::to_string(world_size),
       .hint = "ranks go from 0 to world size - 1; one machine holds at most " + std::to_string(kMaxWorld)}));
}

}  // namespace

Endpoint::Endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                   std::chrono::milliseconds timeout, std::string group)
    : rank_(rank),
      world_size_(checked_world(rank, world_size)),
      timeout_(timeout),
      group_(std::move(group)),
      segment_(Segment::create("lockstep-" + std::to_string(rank), first_extent_bytes(world_size))),
      arena_(std::make_shared<Arena>(segment_)),
      bell_(control_in(*segment_, world_size).bell),
      mesh_(std::move(store), rank, world_size, segment_) {}

Endpoint::~Endpoint() = default;

void Endpoint::connect() {
  try {
    mesh_.connect(base::Deadline::in(timeout_), cancelled_);
    std::vector<std::shared_ptr<Segment>> segments;
    for (const auto& peer : mesh_.peers()) segments.push_back(peer.segment);
    const auto cpus = cpus_of(mesh_.peers());
    // More ranks than CPUs to run them on: then busy waiting only keeps the awaited one from running.
    const bool crowded = mesh_.peers().size() > cpus;
    const Lock lock(mutex_);
    const auto spin = base::env_int("LOCKSTEP_SPIN_US", 0, 1000000);
    inline_ = are_carried_on_inline(mesh_.peers().size() * at::get_num_threads() < cpus);
    spin_ = spin ? std::chrono::microseconds(*spin) : crowded ? 0us : kSpin;
    board_.emplace(rank_, std::move(segments), crowded);
    mail_.emplace(*board_, *arena_);
    if (failure_) publish_failure();
    while (!waiting_messages_.empty()) {
      mail_->add(*waiting_messages_.front());
      waiting_messages_.erase(waiting_messages_.begin());
    }
  } catch (const Error& error) {
    const Lock lock(mutex_);
    fail(std::string(error.kind()), error.what(), error.culprits());
    throw;
  } catch (const std::exception& error) {
    const Lock lock(mutex_);
    fail("Error", error.what());
    throw;
  }
  ring(bell_);
}

void Endpoint::connect_in_background() {
  const Lock lock(mutex_);
  need_attendant();
}

// ---- Handing over

void Endpoint::refuse_in_child() const {
  if (!segment_->inherited()) return;
  throw UsageError(base::compose(
      {.what = "a forked process cannot use the groups of its parent",
       .where = where(nullptr),
       .evidence = fmt::format("the group was made in process {}, this is its child {}",
                               mesh_.peers()[rank_].facts.pid, ::getpid()),
       .hint = "communicate in the parent only, or make a group of its own in the child, after the fork"}));
}

void Endpoint::refuse_if_poisoned() const {
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
}

void Endpoint::run(Call& call) {
  refuse_in_child();
  Lock lock(mutex_);
  refuse_if_poisoned();
  enqueue(call);
  wait(lock, call, std::nullopt);
  lock.unlock();
  if (call.error) std::rethrow_exception(call.error);
}

void Endpoint::start(Call& call) {
  refuse_in_child();
  Lock lock(mutex_);
  refuse_if_poisoned();
  call.deadline = Clock::now() + (call.timeout.count() > 0 ? call.timeout : timeout_);
  if (call.before != nullptr) {
    call.before->timeout = call.timeout;
    call.before->deadline = call.deadline;
    enqueue(*call.before);
  }
  enqueue(call);
  ++attended_;
  progress(Effort::Share);
  if (!call.complete) need_attendant();
  notify(lock);
}

void Endpoint::start(Message& message) {
  refuse_in_child();
  Lock lock(mutex_);
  refuse_if_poisoned();
  message.deadline = Clock::now() + (message.timeout.count() > 0 ? message.timeout : timeout_);
  if (mail_) {
    mail_->add(message);
  } else {
    waiting_messages_.push_back(&message);
  }
  ++attended_;
  progress(Effort::Share);
  if (!message.complete) need_attendant();
  notify(lock);
}

void Endpoint::abandon(Operation& operation) {
  if (segment_->inherited()) return;
  const Lock lock(mutex_);
  if (operation.complete) return;
  operation.abandoned = true;
  ring(bell_);
}

void Endpoint::poison(const std::string& kind, const std::string& text) {
  if (segment_->inherited()) return;
  Lock lock(mutex_);
  fail(kind, text);
  notify(lock);
}

void Endpoint::retire() {
  if (segment_->inherited()) return;
  const Lock lock(mutex_);
  retired_ = true;
  cancelled_ = idle();  // who has calls under way may still meet the others
  attendant_.notify_all();
}

// ---- Carrying on

bool Endpoint::progress(Effort effort) {
  if (!board_ || failure_) return false;
  try {
    bool moved = arrive();
    moved |= run_calls(effort);
    if (arrived_since_ || finished_before_) announce();
    if (!exposed_.empty()) moved |= release_exposed();
    if (!mail_->idle()) {
      moved |= mail_->step(received_);
      for (auto* operation : received_) complete(*operation);
      received_.clear();
    }
    return moved;
  } catch (const Disagreement& disagreement) {
    fail("MismatchError",
         base::compose({.what = "the ranks do not make the same call",
                        .where = where(disagreement.in_message ? nullptr : first_),
                        .evidence = fmt::format("this rank is in {}, {} in {}", disagreement.here,
                                                name_of(disagreement.rank), disagreement.there),
                        .hint = "all ranks must make the same calls in the same order, with tensors of the "
                                "same size and type"}));
  } catch (const Tainted& tainted) {
    adopt_failure(tainted.rank);
  } catch (const Error& error) {
    fail(std::string(error.kind()), error.what(), error.culprits());
  } catch (const std::exception& error) {
    fail("Error", error.what());
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
      all_finished_ = board_->least(&Control::finished);
      if (call.number - all_finished_ >= kCallsInFlight) return moved;
    }
    auto& slot = board_->call(rank_, call.number);
    slot.call.where = expose(*board_, call, slot);
    slot.call.count = call.request.count;
    slot.call.root = call.request.root;
    slot.call.kind = static_cast<uint8_t>(call.request.kind);
    slot.call.dtype = static_cast<uint8_t>(call.request.dtype);
    slot.call.combine = static_cast<uint8_t>(call.request.combine);
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
        finished_before_ && board_->all_reached(&Control::finished, *finished_before_ + 1);
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
    if (call.reads_registered) board_->refuse_tainted();
    first_ = call.next;
    if (first_ == nullptr) last_ = nullptr;
    auto& finished = board_->control(rank_).finished.value;
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
    if (!board_->all_reached(&Control::finished, call->number + 1)) return false;
    complete(*call);
    return true;
  });
  return exposed_.size() != before;
}

void Endpoint::complete(Operation& operation, std::exception_ptr error) {
  operation.error = std::move(error);
  operation.complete = true;
  if (operation.owner != nullptr) to_notify_.push_back(operation.owner);
  ring(bell_);  // another thread of this rank may sleep for it
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
  need_attendant();
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
    if (std::exchange(operation.abandoned, false)) {
      waited = Waited::Abandoned;
      break;
    }
    if (until && Clock::now() >= *until) {
      waited = Waited::TimedOut;
      break;
    }
    doze(lock, until);
    notify(lock);
  }
  --waiting_;
  notify(lock);
  // What others have under way is the attendant's again.
  if (waiting_ == 0 && has_attendant_ && !idle()) attendant_.notify_all();
  return waited;
}

bool Endpoint::poll(const Operation& operation) {
  if (segment_->inherited()) return operation.complete;
  Lock lock(mutex_);
  ++attended_;
  if (!operation.complete) progress(Effort::Share);
  // Read before the owner is told: it may let go of the operation then.
  const bool complete = operation.complete;
  notify(lock);
  return complete;
}

// ---- The attendant

void Endpoint::need_attendant() {
  if (has_attendant_) {
    if (attendant_rests_) attendant_.notify_all();
    return;
  }
  const auto run = [self = shared_from_this()] {
    Lock lock(self->mutex_);
    if (!self->board_ && !self->failure_) {
      lock.unlock();
      try {
        self->connect();
      } catch (const std::exception& error) {
        base::log_debug("{}", error.what());  // kept: every call will throw it
      }
      lock.lock();
    }
    self->attend(lock);
  };
  try {
    std::thread attendant(run);
    ::pthread_setname_np(attendant.native_handle(), "lockstep-shm");
    attendant.detach();
    has_attendant_ = true;
  } catch (const std::system_error& error) {
    fail("SystemError",
         base::compose({.what = "a thread for the calls that nobody waits for cannot be started",
                        .where = where(nullptr),
                        .evidence = error.what(),
                        .hint = "raise the limit of processes and threads (ulimit -u)"}));
  }
}

// Runs what belongs to the user. That may take any time and wait for other calls of this group, so another
// thread attends meanwhile, if there is anything to attend to. False when that one has taken over.
bool Endpoint::conclude(Lock& lock) {
  while (!to_conclude_.empty()) {
    auto* completion = to_conclude_.front();
    to_conclude_.erase(to_conclude_.begin());
    has_attendant_ = false;
    if (!idle() || !to_conclude_.empty()) need_attendant();
    lock.unlock();
    completion->conclude();
    lock.lock();
    if (has_attendant_) return false;
    has_attendant_ = true;
  }
  return true;
}

void Endpoint::attend(Lock& lock) {
  const std::chrono::microseconds short_nap = inline_ ? kInlineNap : kShortNap;
  const std::chrono::microseconds long_nap = inline_ ? kInlineNap : kLongNap;
  auto nap = short_nap;
  int naps = 0;
  uint64_t seen = 0;
  for (;;) {
    notify(lock);
    if (!conclude(lock)) return;
    if (idle() && retired_) {
      has_attendant_ = false;
      return;
    }
    if (!idle() && waiting_ == 0 && inline_ && attended_ != seen) {
      seen = attended_;
      attendant_.wait_for(lock, kInlineNap);
    } else if (!idle() && waiting_ == 0) {
      nap = short_nap;
      if (progress()) continue;
      doze(lock);
      naps = 0;
    } else if (naps < kNapsBeforeRest || !idle()) {
      attendant_.wait_for(lock, nap);
      nap = std::min(2 * nap, long_nap);
      ++naps;
    } else {
      attendant_rests_ = true;
      attendant_.wait(lock, [&] { return !idle() || retired_ || !to_conclude_.empty(); });
      attendant_rests_ = false;
      nap = short_nap;
      naps = 0;
    }
  }
}

}  // namespace lockstep::shm
