// The state machine of a job: node 0's agent passes in the events of all nodes and gets orders for all nodes.
// Has no side effects and no clock: the agent measures the times. Works the same for one node and for
// several.
//
//   Running ──failure──> Collecting ──cause known, or kCollectMs have passed──> Stopping ──> Running again
//      └──all finished───────────────────────────────────────────────────────────┴──> Ended
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/control.h"

namespace lockstep::launch {

class Job {
 public:
  // How long to wait for the cause after the first failure that is a consequence of another.
  static constexpr int kCollectMs = 300;

  // `welcome`: that of any node.
  explicit Job(const Welcome& welcome);

  // Each returns the order to send to all nodes, if any.
  Order begin();
  std::optional<Order> on(int node, const Event& event);
  std::optional<Order> on_lost(int node, const std::string& why);
  std::optional<Order> on_collected();
  // The time to stop has passed: nodes that have not stopped are lost.
  std::optional<Order> on_overdue();

  bool stopping() const { return state_ == State::Stopping; }
  bool collecting() const { return state_ == State::Collecting; }
  bool ended() const { return state_ == State::Ended; }

 private:
  enum class State { Running, Collecting, Stopping, Ended };

  std::optional<Order> on_failed(const RankEnd& failure);
  std::optional<Order> on_interrupted(int node, int signal);
  void on_left(int node, int rank, int64_t pid);
  Order decide();
  // The ranks to blame instead of the failed ones; empty if a failed rank is the cause.
  std::vector<Culprit> find_culprits() const;
  Order stop(Order order);
  // The next order, once all nodes that are not lost have stopped.
  std::optional<Order> when_all_stopped();

  std::vector<std::string> hosts_;
  std::vector<int> nprocs_;
  int max_restarts_;

  State state_ = State::Running;
  int attempt_ = 0;
  std::vector<RankEnd> failures_;
  std::map<int, int64_t> left_;  // pids of ranks that have ended with status 0
  std::vector<bool> idle_;       // by node: no process of this attempt is running there
  std::vector<bool> lost_;       // by node: its agent is lost
  bool restart_ = false;         // in Stopping: whether the workers are started again afterwards
  int status_ = 0;               // in Stopping: the exit status of the job
};

}  // namespace lockstep::launch
