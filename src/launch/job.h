// What becomes of the job: node 0's agent feeds in what happens on all nodes and gets orders for all nodes.
// Pure; time is the caller's. One node is the same as several.
//
//   Running ──failure──> Collecting ──cause known, or collected for long enough──> Stopping ──> Running again
//      └──all finished──────────────────────────────────────────────────────────────┴──> Ended
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/control.h"

namespace lockstep::launch {

class Job {
 public:
  // How long to wait for the cause after the first failure that says that it is a consequence of another.
  static constexpr int kCollectMs = 300;

  // `hosts` of the nodes, in order of node rank.
  Job(std::vector<std::string> hosts, int max_restarts);

  // Each returns the order that all nodes are to get now, if any.
  Order begin();
  std::optional<Order> on(int node, const Event& event);
  std::optional<Order> on_lost(int node, const std::string& why);
  std::optional<Order> on_collected();

  bool collecting() const { return state_ == State::Collecting; }
  bool ended() const { return state_ == State::Ended; }

 private:
  enum class State { Running, Collecting, Stopping, Ended };

  std::optional<Order> on_failed(const Failure& failure);
  std::optional<Order> on_interrupted(int node, int signal);
  Order decide();
  Order stop(Order order);
  // The next order once every node that is left has stopped.
  std::optional<Order> when_all_stopped();

  std::vector<std::string> hosts_;
  int max_restarts_;

  State state_ = State::Running;
  int attempt_ = 0;
  std::vector<Failure> failures_;
  std::vector<bool> idle_;  // by node: nothing of this attempt runs there
  std::vector<bool> lost_;  // by node: its agent is gone
  bool restart_ = false;    // in Stopping: what comes after it
  int status_ = 0;          // in Stopping: with which status the job ends
};

}  // namespace lockstep::launch
