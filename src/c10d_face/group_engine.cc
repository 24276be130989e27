#include "c10d_face/group_engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <fmt/format.h>
#include <mutex>
#include <optional>
#include <unistd.h>
#include <utility>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/deadline.h"
#include "base/error_text.h"
#include "base/log.h"
#include "c10d_face/bindings.h"
#include "c10d_face/helpers.h"
#include "comm/diagnose.h"
#include "comm/failure.h"
#include "comm/wire_tags.h"

namespace lockstep::c10d_face {

namespace {

using namespace std::chrono_literals;

void end(ProcessGroup::Impl& group, const std::string& kind, const std::string& text) noexcept {
  try {
    base::throw_kind(kind, text);
  } catch (const Error& error) {
    comm::end_group(group, error);
  }
}

// An owner of these tensors for Request::keep, whose copies are destroyed in any thread. Memory may belong to
// Python, so it is freed only as long as callbacks may run.
at::Tensor owner_of(std::vector<at::Tensor> tensors) {
  struct Owned {
    std::vector<at::Tensor> tensors;
    ~Owned() {
      const RunningCallbacks callbacks;
      if (!callbacks.allowed()) new std::vector<at::Tensor>(std::move(tensors));
    }
  };
  const auto owned = std::make_shared<Owned>();
  owned->tensors = std::move(tensors);
  return at::from_blob(
      owned.get(), {0}, [owned](void*) {}, at::TensorOptions(at::kByte));
}

void refuse_what_is_not_supported(const comm::Request& request) {
  if (!comm::is_message(request)) return;
  if (request.peer == comm::kAnyRank) {
    throw UsageError(
        base::compose({.what = "a receive from any rank is not possible in a group on several machines",
                       .evidence = "messages are matched by the ranks at both ends, and by their tags",
                       .hint = "name the sender, or use backend \"gloo\""}));
  }
  if (request.tag > comm::kLargestUserTag) {
    throw UsageError(base::compose({.what = fmt::format("{} failed", comm::describe(request)),
                                    .evidence = "the tag is too large",
                                    .hint = fmt::format("tags go from 0 to {}", comm::kLargestUserTag)}));
  }
}

}  // namespace

// ---- Works

class GroupEngine::Operation final : public Work {
 public:
  using Second = std::function<comm::Request()>;

  Operation(const Caller& caller, std::shared_ptr<ProcessGroup::Impl> group, std::shared_ptr<Helpers> helpers,
            WorkInfo info)
      : Work(caller, std::move(info)),
        made_by_(group->made_by),
        group_(std::move(group)),
        helpers_(std::move(helpers)) {}

  // `attend` makes a helper call complete().
  template <class Attend>
  void start(comm::Request request, Second second, Attend&& attend) {
    if (request.kind == comm::Kind::Receive) source_ = request.peer;
    second_ = std::move(second);
    if (request.timeout.count() > 0) end_ = base::Deadline::in(request.timeout);
    if (!keep_alive().empty()) request.keep.push_back(owner_of(keep_alive()));
    request.storage.reset();  // an owner, too
    begin([&] {
      comm::refuse_if_forked(*group_);
      refuse_what_is_not_supported(request);
      started_ = comm::start(group_, {.request = std::move(request)});
      try {
        attend();
      } catch (const Error& error) {
        comm::end_group(*group_, error);
        throw;
      }
    });
  }

  // Blocks until the operation is complete. The last reference to it may own memory of Python's, which is
  // freed only as long as callbacks may run.
  static void attend(c10::intrusive_ptr<Operation> operation) noexcept {
    operation->complete();
    const RunningCallbacks callbacks;
    if (callbacks.allowed()) {
      operation.reset();
    } else {
      operation.release();
    }
  }

 private:
  void complete() noexcept {
    std::exception_ptr error;
    try {
      started_.wait();
      if (const auto second = std::exchange(second_, nullptr)) gather(second);
    } catch (...) {
      error = std::current_exception();
    }
    settle(std::move(error), source_);
  }

  // By messages: as a collective, it would have to take place before others that have been started meanwhile.
  void gather(const Second& describe) {
    comm::Request request;
    try {
      request = describe();
    } catch (const Error& error) {
      comm::end_group(*group_, error);
      throw;
    }
    std::vector<lockstep::Work> messages;
    const auto add = [&](comm::Kind kind, int peer) {
      comm::Request message;
      message.kind = kind;
      message.dtype = request.dtype;
      message.count = request.count;
      message.peer = peer;
      message.tag = comm::kInternalTag;
      // Not 0, which would be the group's.
      if (end_) message.timeout = std::max(end_->remaining(), 1ms);
      message.keep = request.keep;
      if (kind == comm::Kind::Send) {
        message.give = {request.give.front()};
      } else {
        message.take = {request.take[peer]};
      }
      messages.push_back(comm::start(group_, {.request = std::move(message)}));
    };
    for (int peer = 0; peer < group_->world_size; ++peer) {
      if (peer == rank_) continue;
      add(comm::Kind::Send, peer);
      add(comm::Kind::Receive, peer);
    }
    const auto& mine = request.give.front();
    if (mine.bytes > 0) std::memcpy(request.take[rank_].data, mine.data, mine.bytes);
    for (auto& message : messages) message.wait();
  }

  // Work
  void poll() override {}
  Waited wait_for_it(std::optional<Clock::time_point> until) override {
    if (::getpid() != made_by_ && group_) comm::refuse_if_forked(*group_);
    std::unique_lock lock(mutex_);
    const auto is_over = [this] { return completed_ || interrupted_; };
    if (!until) {
      cv_.wait(lock, is_over);
    } else if (!cv_.wait_until(lock, *until, is_over)) {
      return Waited::TimedOut;
    }
    return std::exchange(interrupted_, false) && !completed_ ? Waited::Interrupted : Waited::Complete;
  }
  void interrupt() override {
    if (::getpid() != made_by_) return;
    {
      const std::lock_guard lock(mutex_);
      interrupted_ = !completed_;
    }
    cv_.notify_all();
  }
  void call_conclude() override {
    try {
      helpers_->run([this] { conclude(); });
    } catch (const Error& error) {
      base::log_debug("callbacks run in the thread that completes operations: {}", error.what());
      conclude();
    }
  }
  void let_go() noexcept override {
    started_ = {};
    group_.reset();
  }
  void fail_group(const std::string& kind, const std::string& text) noexcept override {
    if (group_) end(*group_, kind, text);
  }

  const pid_t made_by_;
  std::shared_ptr<ProcessGroup::Impl> group_;
  const std::shared_ptr<Helpers> helpers_;
  lockstep::Work started_;
  Second second_;
  std::optional<base::Deadline> end_;  // if the call has its own timeout
  int source_ = kNoSource;
  bool interrupted_ = false;  // guarded by mutex_
};

// The collectives that are not complete, in their order. One helper waits for all of them.
class GroupEngine::Line : public std::enable_shared_from_this<Line> {
 public:
  void add(c10::intrusive_ptr<Operation> operation, Helpers& helpers) {
    const std::lock_guard lock(mutex_);
    if (!attended_) helpers.run([self = shared_from_this()] { self->attend(); });
    attended_ = true;
    operations_.push_back(std::move(operation));
  }

 private:
  void attend() {
    std::unique_lock lock(mutex_);
    while (!operations_.empty()) {
      auto operation = std::move(operations_.front());
      operations_.pop_front();
      lock.unlock();
      Operation::attend(std::move(operation));
      lock.lock();
    }
    attended_ = false;
  }

  std::mutex mutex_;
  std::deque<c10::intrusive_ptr<Operation>> operations_;
  bool attended_ = false;
};

class GroupEngine::Shared {
 public:
  // A forked child does not have the threads, and their lock may be held forever.
  ~Shared() {
    if (::getpid() == made_by_) helpers->close();
  }

  const std::shared_ptr<Helpers> helpers = std::make_shared<Helpers>();
  const std::shared_ptr<Line> line = std::make_shared<Line>();
  std::mutex starting;                // held while a collective is started, and takes its place in the line
  std::optional<uint64_t> last_roll;  // the number of the last roll call; guarded by `starting`

 private:
  const pid_t made_by_ = ::getpid();
};

// ---- The roll call: each rank that comes says so in the store.

class GroupEngine::Roll final : public RollCall {
 public:
  Roll(std::shared_ptr<ProcessGroup::Impl> group, SharedPtr shared)
      : group_(std::move(group)), shared_(std::move(shared)) {}

  void run(std::chrono::milliseconds timeout) override {
    comm::refuse_if_forked(*group_);
    const auto deadline = base::Deadline::in(timeout);
    comm::Request barrier;
    barrier.timeout = timeout;
    lockstep::Work started;
    std::optional<uint64_t> previous;
    {
      const std::lock_guard lock(shared_->starting);
      number_ = group_->transport->calls();
      group_->store->write(key_of(number_, group_->rank), "");
      previous = std::exchange(shared_->last_roll, number_);
      started = comm::start(group_, {.request = std::move(barrier)});
    }
    made_ = true;
    started.wait();
    if (previous) erase(*previous, deadline);
  }
  bool was_made() const override { return made_; }

  std::vector<int> absent() override {
    std::vector<int> ranks;
    try {
      for (int rank = 0; rank < group_->world_size; ++rank) {
        if (!group_->store->check({key_of(number_, rank)})) ranks.push_back(rank);
      }
    } catch (const Error& error) {
      base::log_debug("cannot read from the store which ranks have come: {}", error.what());
    }
    return ranks;
  }
  std::vector<int> ended() override {
    auto ranks = comm::ended_ranks(*group_);
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

 private:
  static std::string key_of(uint64_t number, int rank) { return fmt::format("roll/{}/{}", number, rank); }

  // All ranks have come to this roll call, so nobody asks any more who has come to the previous one.
  void erase(uint64_t previous, base::Deadline deadline) const {
    try {
      group_->store->until(deadline)->deleteKey(key_of(previous, group_->rank));
    } catch (const std::exception& error) {
      base::log_debug("cannot erase a key of the store: {}", error.what());
    }
  }

  const std::shared_ptr<ProcessGroup::Impl> group_;
  const SharedPtr shared_;
  uint64_t number_ = 0;
  bool made_ = false;
};

// ---- The engine

namespace {

const Titles& titles_of_hybrid() {
  static const auto& titles = *new Titles("hybrid");
  return titles;
}

}  // namespace

GroupEngine::SharedPtr GroupEngine::share() { return std::make_shared<Shared>(); }

GroupEngine::GroupEngine(std::shared_ptr<ProcessGroup::Impl> group, SharedPtr shared)
    : Engine("hybrid", titles_of_hybrid(), group->rank, group->world_size),
      group_(std::move(group)),
      shared_(std::move(shared)) {}

WorkPtr GroupEngine::start(comm::Request request, WorkInfo info) {
  if (!comm::is_message(request)) return start(std::move(request), nullptr, std::move(info));
  auto work = c10::make_intrusive<Operation>(caller(), group_, shared_->helpers, std::move(info));
  work->start(std::move(request), nullptr,
              [&] { shared_->helpers->run([work]() mutable { Operation::attend(std::move(work)); }); });
  return work;
}

WorkPtr GroupEngine::start(comm::Request first, std::function<comm::Request()> second, WorkInfo info) {
  auto work = c10::make_intrusive<Operation>(caller(), group_, shared_->helpers, std::move(info));
  const std::lock_guard lock(shared_->starting);
  work->start(std::move(first), std::move(second), [&] { shared_->line->add(work, *shared_->helpers); });
  return work;
}

std::unique_ptr<RollCall> GroupEngine::roll_call() { return std::make_unique<Roll>(group_, shared_); }

void GroupEngine::fail(const std::string& kind, const std::string& text) noexcept {
  end(*group_, kind, text);
}

}  // namespace lockstep::c10d_face
