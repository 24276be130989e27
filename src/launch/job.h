// What becomes of the job: node 0's agent feeds in what happens on all nodes and gets orders for all nodes.
// Pure; time is the caller's. One node is the same as several.
//
//   Running ──failure──> Collecting ──cause known, or collected for long enough──> Stopping ──> Running again
//      └──all finished──────────────────────────────────────────────────────────────┴──> Ended
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/control.h"

namespace lockstep::launch {

class Job {
 public:
  // How long to wait for the cause after the first failure that says that it is a consequence of another.
  static constexpr int kCollectMs = 300;

  // `welcome`: of any of the nodes.
  explicit Job(const Welcome& welcome);

  // Each returns the order that all nodes are to get now, if any.
  Order begin();
  std::optional<Order> on(int node, const Event& event);
  std::optional<Order> on_lost(int node, const std::string& why);
  std::optional<Order> on_collected();
  // The nodes have had all the time there is to stop: those that have not are lost.
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
  // Whom to name in place of the failed ranks; none when one of those is the cause.
  std::vector<Culprit> find_culprits() const;
  Order stop(Order order);
  // The next order once every node that is left has stopped.
  std::optional<Order> when_all_stopped();

  std::vector<std::string> hosts_;
  std::vector<int> nprocs_;
  int max_restarts_;

  State state_ = State::Running;
  int attempt_ = 0;
  std::vector<RankEnd> failures_;
  std::map<int, int64_t> left_;  // ranks that have ended with status 0, and their pids
  std::vector<bool> idle_;       // by node: nothing of this attempt runs there
  std::vector<bool> lost_;       // by node: its agent is gone
  bool restart_ = false;         // in Stopping: what comes after it
  int status_ = 0;               // in Stopping: with which status the job ends
};

}  // namespace lockstep::launch
