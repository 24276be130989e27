// One rank's side of a group: takes calls and messages, carries them on, and waits for the others.
//
// A call returns at once; what it asks for is done by whoever has time: the thread that waits for it, any
// other thread that waits at this endpoint, or, when nobody waits, a thread of the endpoint's own
// (attendant), which sleeps as long as others do the work. One lock guards everything; it is never held while
// asleep, nor while a Completion runs.
//
// The first error poisons the group: it is left where the other ranks see it, ends all that is under way, and
// is thrown by every later call. Before that, memory of this rank's that others may be writing to is taken
// away from them: when a call has thrown, the caller's memory is the caller's.
//
// A forked child has a picture of the endpoint, with locks that nobody will give back and without the
// threads. There, calls throw UsageError, and all else does nothing.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shm/arena.h"
#include "shm/board.h"
#include "shm/call.h"
#include "shm/mail.h"
#include "shm/mesh.h"

namespace lockstep::shm {

class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  using Clock = std::chrono::steady_clock;

  // Introduces this rank to the others; waits for nobody. `group` is the group's name in messages.
  Endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, std::chrono::milliseconds timeout,
           std::string group);
  ~Endpoint();

  // One of the two, once. Both let calls begin when all ranks are there.
  void connect();                // in this thread; throws what went wrong
  void connect_in_background();  // what goes wrong poisons the group

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  uint64_t calls() const { return next_number_; }  // collectives begun
  std::chrono::milliseconds timeout() const { return timeout_; }

  // Begins the call and waits for its end. Throws what went wrong.
  void run(Call& call);
  // Begins it. It must stay until it is complete. Throws if the group is poisoned.
  void start(Call& call);
  void start(Message& message);
  enum class Waited { Complete, TimedOut, Abandoned };
  // Does not throw the operation's error. `until`: when this wait is given up, not the operation.
  Waited wait(Operation& operation, std::optional<Clock::time_point> until);
  // Ends the wait for the operation, or the next if there is none now. The operation goes on.
  void abandon(Operation& operation);
  // Helps a little; true when the operation is complete.
  bool poll(const Operation& operation);

  // Has conclude() called by the endpoint's own thread.
  void defer(Completion& completion);

  // Ends the group with this error, on all ranks.
  void poison(const std::string& kind, const std::string& text);

  // Nobody will start anything any more. What is under way goes on.
  void retire();

  // The ranks that have not come to this call.
  std::vector<int> absent(uint64_t number);
  // The ranks that have ended.
  std::vector<int> ended();

  // Registered memory.
  const std::shared_ptr<Arena>& arena() const { return arena_; }

 private:
  struct Failure {
    std::string kind, text;
    std::exception_ptr error;
  };
  using Lock = std::unique_lock<std::mutex>;

  void refuse_in_child() const;

  // All below: with the lock held.
  void enqueue(Call& call);
  void refuse_if_poisoned() const;
  bool idle() const { return first_ == nullptr && exposed_.empty() && mail_idle(); }
  bool mail_idle() const { return waiting_messages_.empty() && (!mail_ || mail_->idle()); }

  // Carries everything on as far as it goes without waiting; true if anything moved.
  bool progress(Effort effort = Effort::All);
  bool arrive();
  void announce();
  bool run_calls(Effort effort);
  bool release_exposed();
  void complete(Operation& operation, std::exception_ptr error = nullptr);

  Waited wait(Lock& lock, Operation& operation, std::optional<Clock::time_point> until);
  // Sleeps until there may be news, for a while at most; then looks for the late and the dead.
  void doze(Lock& lock, std::optional<Clock::time_point> until = std::nullopt);
  void look_for_trouble();
  void look_for_failures();
  void look_for_the_dead();
  void look_for_the_late();
  // `culprits`: the ranks that are the reason, if any are known.
  void fail(const std::string& kind, const std::string& text, const std::vector<int>& culprits = {});
  void adopt_failure(int rank);
  void publish_failure();
  bool others_may_write() const;
  // Tells the owners of what is complete, with the lock let go meanwhile.
  void notify(Lock& lock);

  void need_attendant();
  void attend(Lock& lock);
  bool conclude(Lock& lock);

  // For messages.
  std::string where(const Call* call) const;
  std::string name_of(int rank) const;
  std::string description_of(const Call& call) const;
  // The ranks that hold the call up, and where they are.
  std::vector<int> holding_up(const Call& call) const;
  std::string whereabouts(const Call& call) const;  // of those who hold it up; may be empty
  std::string last_words(int rank) const;           // what the rank did last, as far as this one can see

  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds timeout_;
  const std::string group_;
  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<Arena> arena_;
  BellWords& bell_;
  Mesh mesh_;
  std::atomic<bool> cancelled_{false};

  std::mutex mutex_;
  std::optional<Board> board_;  // once all are connected
  std::optional<Mail> mail_;
  std::vector<Message*> waiting_messages_;  // for the connection
  std::chrono::microseconds spin_{0};
  std::optional<Failure> failure_;

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

  int waiting_ = 0;        // threads in wait()
  uint64_t attended_ = 0;  // how often threads have come by and carried things on
  bool inline_ = false;    // they do so often enough
  bool has_attendant_ = false;
  bool attendant_rests_ = false;  // until it is called
  bool retired_ = false;
  std::condition_variable attendant_;
};

}  // namespace lockstep::shm
