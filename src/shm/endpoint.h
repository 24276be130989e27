// One rank's side of a group in shared memory: takes calls and messages, advances them, and waits for the
// other ranks. It is the transport of lockstep's groups; its c10d face is in shm_c10d/.
//
// A call that is started returns at once. It is advanced by whichever thread has time: the one that waits for
// it, any other that waits at this endpoint, or, when nobody waits, the endpoint's own background thread,
// which sleeps as long as others do the work. One lock guards everything; it is never held while asleep, nor
// while a Completion runs.
//
// The first error is final: it is published to the other ranks, ends all calls under way, and is thrown by
// every later call. Before that, memory of this rank that others may be writing to is withdrawn: when a call
// has thrown, the caller's memory is the caller's.
//
// A group has two endpoints, one for each lane of its segments (layout.h): data, and the control channel.
// They fail independently. A rank that waits in one lane while another rank has made a call in the other lane
// instead gets a MismatchError.
//
// A forked child has a copy of the endpoint, with locks that nobody will release and without the threads.
// There, calls throw UsageError, and everything else does nothing.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/transport.h"
#include "shm/arena.h"
#include "shm/board.h"
#include "shm/call.h"
#include "shm/mesh.h"
#include "shm/messages.h"

namespace lockstep::shm {

class Endpoint final : public comm::Transport, public std::enable_shared_from_this<Endpoint> {
 public:
  using Clock = std::chrono::steady_clock;

  // The data lane. Publishes this rank's address; waits for nobody. `group` is the group's name in messages.
  Endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, std::chrono::milliseconds timeout,
           std::string group);
  // Of a data lane that has connected: the control lane of the same group. The same one each time, since it
  // counts the exchanges; each caller is an owner of it.
  std::shared_ptr<Endpoint> control_lane();
  ~Endpoint() override;

  // One of the two, once. Both let calls begin when all ranks have connected.
  void connect();                // in this thread; throws what went wrong
  void connect_in_background();  // what goes wrong is the endpoint's first error

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  uint64_t calls() const { return next_number_; }  // collectives begun
  std::chrono::milliseconds timeout() const { return timeout_; }
  std::string name_of(int rank) const;  // "rank 1 (pid 4711, host node0)"

  // comm::Transport
  bool averages(c10::ScalarType dtype) const override;
  bool supplies_memory() const override { return true; }
  bool needs_polling() const override { return true; }
  bool reports_failures() const override { return true; }
  void run(Request& request) override;
  std::shared_ptr<Work::State> start(Request&& request) override;
  void fail(const Error& why) noexcept override { fail(std::string(why.kind()), why.what()); }
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options) override;
  bool supplied(const at::Tensor& tensor) const override;

  // Begins the operation and waits for its end. Throws what went wrong.
  void run(Call& call);
  void run(Message& message);
  // Begins it. It must stay until it is complete. Throws the endpoint's first error if it had one.
  void start(Call& call);
  void start(Message& message);
  enum class Waited { Complete, TimedOut, Interrupted };
  // Does not throw the operation's error. `until`: when this wait ends, though the operation goes on.
  Waited wait(Operation& operation, std::optional<Clock::time_point> until);
  // Ends the wait for the operation, or the next one if there is none now. The operation goes on.
  void interrupt(Operation& operation);
  // Advances it a little; true when the operation is complete.
  bool poll(const Operation& operation);

  // Has conclude() called by the background thread.
  void defer(Completion& completion);

  // Ends the communication of this lane with this error, on all ranks.
  void fail(const std::string& kind, const std::string& text) noexcept;

  // An endpoint may have several owners; each retires from it once. After the last one nothing is started any
  // more; what is under way goes on.
  void add_owner();
  void retire();

  // The ranks that have not made this call.
  std::vector<int> absent(uint64_t number);
  // The ranks that have ended.
  std::vector<int> ended();

 private:
  struct FirstError {
    std::string kind, text;
    std::exception_ptr error;
  };
  using Lock = std::unique_lock<std::mutex>;

  Endpoint(const Endpoint& data, Lane lane);
  void refuse_in_child() const;

  // All below: with the lock held.
  void open();
  void enqueue(Call& call);
  void add(Message& message);
  void refuse_if_failed() const;
  bool idle() const { return first_ == nullptr && exposed_.empty() && no_messages(); }
  bool no_messages() const { return waiting_messages_.empty() && (!messages_ || messages_->idle()); }

  // Advances everything as far as it goes without waiting; true if anything moved.
  bool progress(Effort effort = Effort::All);
  bool arrive();
  void announce();
  bool run_calls(Effort effort);
  bool release_exposed();
  void complete(Operation& operation, std::exception_ptr error = nullptr);

  Waited wait(Lock& lock, Operation& operation, std::optional<Clock::time_point> until);
  // Tells the owners of what is complete, with the lock released meanwhile.
  void notify(Lock& lock);

  // The background thread (background.cc).
  void need_background();
  void run_background(Lock& lock);
  bool conclude(Lock& lock);

  // Trouble (trouble.cc). Sleeps until there may be news, for a while at most; then looks for trouble.
  void sleep(Lock& lock, std::optional<Clock::time_point> until = std::nullopt);
  void look_for_trouble();
  void look_for_failures();
  void look_into_other_lane();
  void look_for_the_dead();
  void look_for_the_late();
  // `culprits`: the ranks that are the reason, if any are known.
  void set_failure(const std::string& kind, const std::string& text, const std::vector<int>& culprits = {});
  void adopt_failure(int rank, const RankWords& theirs);
  void publish_failure();
  const FailureWords* failure_of(int rank) const;
  void withdraw_what_others_may_write();
  std::string where(const Call* call) const;
  std::string description_of(const Call& call) const;
  // The ranks that hold the call up, and where they are.
  std::vector<int> holding_up(const Call& call) const;
  std::string whereabouts(const Call& call) const;  // of those who hold it up; may be empty
  std::string last_seen(int rank) const;            // the rank's last call, as far as this one can see

  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds timeout_;
  const std::string group_;
  const Lane lane_;
  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<Arena> memory_;          // of the process
  const std::shared_ptr<Arena> messages_arena_;  // of this rank's segment; null in the control lane
  RankWords& mine_;                              // this rank's words in this lane
  const RankWords& mine_in_other_lane_;
  const std::shared_ptr<Mesh> mesh_;
  std::atomic<bool> cancelled_{false};

  std::mutex mutex_;
  std::optional<Board> board_;  // once all are connected
  std::optional<Board> other_lane_;
  std::optional<Messages> messages_;
  std::vector<Message*> waiting_messages_;  // for the connection
  std::chrono::microseconds spin_{0};
  std::optional<FirstError> failure_;

  std::atomic<uint64_t> next_number_{0};
  uint64_t next_round_ = 0;
  uint64_t all_finished_ = 0;  // calls that all ranks are known to have finished
  // Calls that this rank has not finished, oldest first; those from `to_arrive_` on have not arrived.
  Call* first_ = nullptr;
  Call* last_ = nullptr;
  Call* to_arrive_ = nullptr;
  // What announce() has to tell: the first call this rank has arrived at since, and how many it had finished.
  std::optional<uint64_t> arrived_since_, finished_before_;
  std::vector<Call*> exposed_;  // finished calls whose memory others may still read
  std::vector<Completion*> to_notify_;
  std::vector<Completion*> to_conclude_;
  std::vector<Operation*> received_;  // scratch of progress()
  Clock::time_point last_look_{};

  int waiting_ = 0;      // threads in wait()
  uint64_t visits_ = 0;  // how often threads have come by and advanced the calls
  bool inline_ = false;  // they do so often enough
  bool has_background_ = false;
  bool background_rests_ = false;  // until it is called
  int owners_ = 1;
  bool retired_ = false;
  std::condition_variable background_;
  std::shared_ptr<Endpoint> control_lane_;  // of the data lane, once it is asked for
};

}  // namespace lockstep::shm
