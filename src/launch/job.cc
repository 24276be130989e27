#include "launch/job.h"

#include <algorithm>
#include <csignal>
#include <fmt/format.h>

namespace lockstep::launch {

Job::Job(const Welcome& welcome)
    : hosts_(welcome.hosts),
      nprocs_(welcome.nprocs),
      max_restarts_(welcome.max_restarts),
      idle_(hosts_.size(), false),
      lost_(hosts_.size(), false) {}

Order Job::begin() { return {.kind = Order::Kind::Start, .attempt = attempt_}; }

std::optional<Order> Job::on(int node, const Event& event) {
  if (ended() || lost_[static_cast<size_t>(node)]) return std::nullopt;
  if (event.kind == Event::Kind::Interrupted) return on_interrupted(node, event.signal);
  if (event.attempt != attempt_) return std::nullopt;  // sent before the restart reached that node
  switch (event.kind) {
    case Event::Kind::Failed:
      return on_failed(*event.failure);
    case Event::Kind::Left:
      on_left(node, event.rank, event.pid);
      return std::nullopt;
    case Event::Kind::Finished:
      if (state_ != State::Running) return std::nullopt;
      idle_[static_cast<size_t>(node)] = true;
      if (std::find(idle_.begin(), idle_.end(), false) != idle_.end()) return std::nullopt;
      state_ = State::Ended;
      return Order{.kind = Order::Kind::End, .attempt = attempt_, .status = 0};
    case Event::Kind::Stopped:
      if (state_ != State::Stopping) return std::nullopt;
      idle_[static_cast<size_t>(node)] = true;
      return when_all_stopped();
    case Event::Kind::Interrupted:
      break;
  }
  return std::nullopt;
}

std::optional<Order> Job::on_failed(const RankEnd& failure) {
  if (state_ != State::Running && state_ != State::Collecting) return std::nullopt;
  failures_.push_back(failure);
  state_ = State::Collecting;
  if (is_consequence(failure)) return std::nullopt;
  return decide();
}

std::optional<Order> Job::on_collected() {
  if (state_ != State::Collecting) return std::nullopt;
  return decide();
}

Order Job::decide() {
  RankEnd cause = choose_cause(failures_);
  cause.culprits = find_culprits();
  // A program that could not be started would fail again.
  restart_ = cause.not_started.empty() && attempt_ < max_restarts_;
  status_ = std::max(1, exit_status(cause.wait_status));
  return stop({.signal = SIGTERM, .failure = cause});
}

void Job::on_left(int node, int rank, int64_t pid) {
  int first = 0;
  for (int before = 0; before < node; ++before) first += nprocs_[static_cast<size_t>(before)];
  if (rank >= first && rank < first + nprocs_[static_cast<size_t>(node)]) left_[rank] = pid;
}

std::vector<Culprit> Job::find_culprits() const {
  std::vector<Culprit> ended;
  std::vector<Culprit> silent;
  const auto blamed = blamed_ranks(failures_);
  int first = 0;
  for (size_t node = 0; node < hosts_.size(); ++node) {
    for (const int rank : blamed) {
      if (rank < first || rank >= first + nprocs_[node]) continue;
      Culprit culprit{.rank = rank, .local_rank = rank - first, .host = hosts_[node]};
      const auto left = left_.find(rank);
      if (left != left_.end()) {
        culprit.ended = true;
        culprit.pid = left->second;
      }
      (culprit.ended ? ended : silent).push_back(culprit);
    }
    first += nprocs_[node];
  }
  // A silent rank may itself be waiting for one that has ended.
  return ended.empty() ? silent : ended;
}

std::optional<Order> Job::on_interrupted(int node, int signal) {
  const auto reason = hosts_.size() == 1 ? signal_name(signal)
                                         : fmt::format("{} on node {} ({})", signal_name(signal), node,
                                                       hosts_[static_cast<size_t>(node)]);
  if (state_ == State::Stopping) {
    // The signal cancels a restart, and determines the exit status then.
    if (restart_) status_ = 128 + signal;
    restart_ = false;
    return Order{.kind = Order::Kind::Stop, .attempt = attempt_, .signal = signal, .reason = reason};
  }
  restart_ = false;
  status_ = 128 + signal;
  return stop({.signal = signal, .reason = reason});
}

std::optional<Order> Job::on_lost(int node, const std::string& why) {
  if (ended() || lost_[static_cast<size_t>(node)]) return std::nullopt;
  lost_[static_cast<size_t>(node)] = true;
  if (state_ == State::Stopping) {
    restart_ = false;
    return when_all_stopped();
  }
  restart_ = false;
  status_ = 1;
  return stop(
      {.signal = SIGTERM,
       .reason = fmt::format("node {} ({}) is lost: {}", node, hosts_[static_cast<size_t>(node)], why)});
}

std::optional<Order> Job::on_overdue() {
  if (state_ != State::Stopping) return std::nullopt;
  std::string late;
  for (size_t node = 0; node < idle_.size(); ++node) {
    if (idle_[node] || lost_[node]) continue;
    lost_[node] = true;
    late += fmt::format("{}{} ({})", late.empty() ? "" : ", ", node, hosts_[node]);
  }
  restart_ = false;
  auto end = when_all_stopped();
  end->reason = fmt::format("node {} did not stop in time: the job ends without it", late);
  return end;
}

Order Job::stop(Order order) {
  state_ = State::Stopping;
  order.kind = Order::Kind::Stop;
  order.attempt = attempt_;
  order.restart = restart_;
  // A node that has finished this attempt replies to the order with Stopped.
  for (size_t node = 0; node < idle_.size(); ++node) idle_[node] = false;
  return order;
}

std::optional<Order> Job::when_all_stopped() {
  for (size_t node = 0; node < idle_.size(); ++node) {
    if (!idle_[node] && !lost_[node]) return std::nullopt;
  }
  if (!restart_) {
    state_ = State::Ended;
    return Order{.kind = Order::Kind::End, .attempt = attempt_, .status = status_};
  }
  ++attempt_;
  failures_.clear();
  left_.clear();
  std::fill(idle_.begin(), idle_.end(), false);
  state_ = State::Running;
  return Order{.kind = Order::Kind::Start, .attempt = attempt_};
}

}  // namespace lockstep::launch
