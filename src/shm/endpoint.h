// One rank's side of a shared-memory group: starts calls and messages, advances them, and waits for the other
// ranks. It is the transport of lockstep's groups. c10d_face/ implements c10d's interface on top of it.
//
// start() does not block. An operation is advanced by the thread that waits for it, by any other thread that
// waits at this endpoint, or, if none waits, by the endpoint's background thread, which sleeps while other
// threads do the work. One lock guards everything. It is not held while a thread sleeps or a Completion runs.
//
// The first error is final: it is published to the other ranks, fails all operations under way, and is thrown
// by every later one. Before it is thrown, memory of this rank that others may be writing to is withdrawn, so
// that no other process writes to the caller's memory afterwards.
//
// A group has two endpoints, one for each lane of its segments (layout.h): data, and the control channel.
// They fail independently. If a rank waits in one lane, and another rank has made a call in the other lane
// instead, the waiting rank gets a MismatchError.
//
// A forked child has a copy of the endpoint without its threads, and its lock may be held forever. There,
// starting or waiting for an operation throws UsageError, and everything else does nothing.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/deadline.h"
#include "comm/transport.h"
#include "shm/board.h"
#include "shm/call.h"
#include "shm/mesh.h"
#include "shm/messages.h"
#include "shm/process_memory.h"

namespace lockstep::shm {

class Endpoint final : public comm::Transport,
                       private comm::OnePass,
                       private comm::Neighbours,
                       public std::enable_shared_from_this<Endpoint> {
 public:
  using Clock = std::chrono::steady_clock;

  // The data lane. Publishes this rank's address; does not wait. `group` is the group's name in errors.
  Endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, std::chrono::milliseconds timeout,
           std::string group);
  // The same for some ranks of the group.
  Endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, RankNames names,
           std::chrono::milliseconds timeout, std::string group);
  // Of a connected data lane: the control lane of the same group. Always the same one, because it counts the
  // exchanges. Each caller becomes an owner of it.
  std::shared_ptr<Endpoint> control_lane();
  ~Endpoint() override;

  // Before connecting: with ranks of other endpoints, there are more ranks than CPUs.
  void expect_crowd() { crowded_ = true; }
  // Call one of the two, once. Operations advance when all ranks are connected.
  void connect(base::Deadline deadline);  // in this thread; throws its errors
  // Until the group's timeout has passed; an error becomes the endpoint's first error.
  void connect_in_background();

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  std::string name_of(int rank) const;  // "rank 1 (pid 4711, host node0)"

  // comm::Transport
  bool averages(c10::ScalarType dtype, c10::Device device) const override;
  bool supplies_memory(c10::Device device) const override { return device.is_cpu(); }
  bool needs_polling() const override { return true; }
  uint64_t calls() const override { return next_number_; }
  bool reports_failures() const override { return true; }
  void run(Request& request) override;
  std::shared_ptr<Work::State> start(Request&& request) override;
  comm::OnePass* one_pass() override { return this; }
  comm::Neighbours* neighbours() override { return this; }
  void fail(const Error& why) noexcept override { fail(std::string(why.kind()), why.what()); }
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options) override;
  bool supplied(const at::Tensor& tensor) const override;

  // Starts the operation and waits until it is complete. Throws its error.
  void run(Call& call);
  // The same, but asks `hopeless` from time to time. If it returns true, returns false; the call continues.
  bool run_unless(Call& call, const std::function<bool()>& hopeless);
  void run(Message& message);
  // The operation must exist until it is complete. Throws the endpoint's first error if there is one.
  void start(Call& call);
  void start(Message& message);
  enum class WaitResult { Complete, TimedOut, Interrupted };
  // Does not throw the operation's error. `until`: the end of this wait; the operation continues.
  WaitResult wait(Operation& operation, std::optional<Clock::time_point> until);
  // Ends the current wait for the operation, or else the next one. The operation continues.
  void interrupt(Operation& operation);
  // Advances the operations without waiting. True if this one is complete.
  bool poll(const Operation& operation);

  // From now on, operations are not left to threads that poll: some thread waits in a way that the endpoint
  // does not see. Does not block.
  void stop_relying_on_polls();

  // Makes the background thread call conclude().
  void defer(Completion& completion);

  // Fails this lane with this error, on all ranks.
  void fail(const std::string& kind, const std::string& text) noexcept;

  // An endpoint may have several owners; each calls retire() once. Without an owner, no operation may be
  // started; those under way continue.
  void add_owner();
  void retire();

  // The ranks that have not arrived at this call.
  std::vector<int> absent(uint64_t number);
  // The ranks whose process has ended, or that have closed their connection.
  std::vector<int> ended();

 private:
  struct FirstError {
    std::string kind, text;
    std::exception_ptr error;
  };
  using Lock = std::unique_lock<std::mutex>;

  Endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, RankNames names,
           std::chrono::milliseconds timeout, std::string group, const ProcessMemory& memory);
  Endpoint(const Endpoint& data, Lane lane);
  // comm::OnePass
  void update(Request& request, comm::Transform& transform) override;
  std::vector<comm::Range> updated_ranges(const Request& request) const override;
  // comm::Neighbours
  std::vector<int> ranks() const override;
  uint64_t offset_of(const at::Tensor& memory) const override;
  at::Tensor map(int rank, uint64_t offset, int64_t bytes) override;
  void throw_if_forked() const;

  // All functions below: with the lock held.
  void open();
  void enqueue(Call& call);
  void notice(const Call& call);
  void add(Message& message);
  void throw_if_failed() const;
  bool idle() const { return first_ == nullptr && exposed_.empty() && no_messages(); }
  bool no_messages() const { return waiting_messages_.empty() && (!messages_ || messages_->idle()); }

  // Advances everything as far as possible without waiting. True if anything advanced.
  bool progress(Effort effort = Effort::All);
  bool arrive();
  void wake_sleepers();
  bool run_calls(Effort effort);
  bool release_exposed();
  void complete(Operation& operation, std::exception_ptr error = nullptr);
  void complete_call(Call& call, std::exception_ptr error = nullptr);
  bool must_wait_for_earlier(const Call& call) const;

  WaitResult wait(Lock& lock, Operation& operation, std::optional<Clock::time_point> until);
  // Notifies the owners of complete operations. Releases the lock meanwhile.
  void notify(Lock& lock);

  // The background thread (background.cc).
  void ensure_background();
  void run_background(Lock& lock);
  bool left_to_pollers() const { return inline_progress_ && !unseen_waits_.load(); }
  bool conclude(Lock& lock);

  // Failures (failures.cc). sleep() returns when another rank has published something, or after a short time,
  // and then looks for errors.
  void sleep(Lock& lock, std::optional<Clock::time_point> until = std::nullopt);
  void look_for_errors();
  void look_for_failed_ranks();
  void check_other_lane();
  void look_for_ended_ranks();
  void look_for_timeouts();
  // `culprits`: the ranks that have caused the failure, if known, by their numbers here.
  void set_failure(const std::string& kind, const std::string& text, const std::vector<int>& culprits = {});
  void adopt_failure(int rank, const RankWords& theirs);
  void publish_failure();
  const FailureWords* failure_of(int rank) const;
  void withdraw_writable_memory();
  std::string where(const Call* call) const;
  std::string description_of(const Call& call) const;
  // The ranks that the call is waiting for.
  std::vector<int> blocking_ranks(const Call& call) const;
  std::string describe_blocking_ranks(const Call& call) const;  // may be empty
  std::string describe_last_call(int rank) const;               // as visible to this rank

  const int rank_;
  const int world_size_;
  const RankNames names_;
  const std::chrono::milliseconds timeout_;
  const std::string group_;
  const Lane lane_;
  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<Arena> memory_;          // this process's memory
  const std::shared_ptr<Relocated> relocated_;   // in it
  const std::shared_ptr<Arena> messages_arena_;  // in this rank's segment; null in the control lane
  RankWords& mine_;                              // this rank's words in this lane
  const RankWords& mine_in_other_lane_;
  const std::shared_ptr<Mesh> mesh_;
  std::atomic<bool> cancelled_{false};

  std::mutex mutex_;
  std::optional<Board> board_;  // when all ranks are connected
  std::optional<Board> other_lane_;
  std::optional<Messages> messages_;
  std::vector<Message*> waiting_messages_;  // started before all ranks were connected
  bool crowded_ = false;                    // more ranks than CPUs
  std::chrono::microseconds spin_{0};
  std::optional<FirstError> failure_;

  std::atomic<uint64_t> next_number_{0};
  uint64_t next_round_ = 0;
  uint64_t all_finished_ = 0;  // calls that all ranks have finished, as last read
  // A list of the calls that this rank has not finished, oldest first. Those from `to_arrive_` on are not
  // visible to the other ranks yet.
  Call* first_ = nullptr;
  Call* last_ = nullptr;
  Call* to_arrive_ = nullptr;
  // Since the last wake_sleepers(): the first call that this rank has arrived at, and how many it had
  // finished before.
  std::optional<uint64_t> arrived_since_, finished_before_;
  std::vector<Call*> exposed_;  // finished calls whose memory other ranks may still read
  std::vector<Completion*> to_notify_;
  std::vector<Completion*> to_conclude_;
  std::vector<Operation*> received_;  // scratch of progress()
  Clock::time_point last_check_{};

  int waiting_ = 0;               // threads in wait()
  uint64_t polls_ = 0;            // calls of start() and poll()
  bool inline_progress_ = false;  // operations are left to threads that poll
  std::atomic<bool> unseen_waits_{false};
  bool has_background_ = false;
  bool background_idle_ = false;  // sleeps until it is notified
  int owners_ = 1;
  std::condition_variable background_wakeup_;
  std::shared_ptr<Endpoint> control_lane_;  // of the data lane, once requested
};

}  // namespace lockstep::shm
