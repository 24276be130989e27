#include "launch/agent.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/host.h"
#include "base/rank_list.h"
#include "launch/contact.h"
#include "launch/descendants.h"
#include "launch/enlist.h"
#include "launch/gang.h"
#include "launch/job.h"
#include "launch/limits.h"
#include "launch/output.h"
#include "launch/program.h"
#include "launch/report.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;
using base::Deadline;

// Grace period of processes that workers have left running.
constexpr auto kLeftoverGrace = 2s;
constexpr auto kSweepEvery = 5ms;
// How long after the grace period a node may take to report that it has stopped: it still has to end leftover
// processes, and the kernel may delay the end of others.
constexpr auto kStopMargin = 30s;
// For the other agents to receive the last order.
constexpr auto kGoodbyeTime = 2s;
// For output that nobody reads, after a signal from the user.
constexpr auto kDrainAfterSignal = 3s;
// A signal received twice within this time was sent once, to all processes of the job.
constexpr auto kSameSignal = 500ms;
constexpr int kLostStatus = 1;
constexpr int kGuardLostStatus = 128 + SIGKILL;

class Agent {
 public:
  Agent(const RunOptions& options, GuardedContext context)
      : options_(options),
        context_(std::move(context)),
        signals_(::signalfd(-1, &context_.signals.waited_for(), SFD_CLOEXEC | SFD_NONBLOCK)),
        gang_(options_, context_.signals, output_) {
    if (!signals_) {
      throw SystemError(
          base::compose({.what = "cannot create a signalfd", .evidence = base::errno_text(errno)}));
    }
  }

  int run() {
    int status = 0;
    try {
      status = run_job();
    } catch (const CannotStart& error) {
      if (*error.what() != '\0') print(error.what());
      status = error.status();
    } catch (const std::exception& error) {
      print(error.what());
      status = 1;
    }
    if (!gang_.empty() || sweep_) end_descendants(0ms);
    contact_.end(Deadline::in(kGoodbyeTime));
    drain_output();
    return status;
  }

 private:
  int run_job();

  // The main loop, with one function for each kind of event.
  void wait();
  Deadline next_deadline() const;
  void read_signals();
  void on_signal(int signal);
  void reap_workers();
  void step_sweep();
  void receive_from_nodes();
  bool on_follower_line(size_t node, const std::string& line);
  bool on_leader_line(const std::string& line);
  void on_follower_lost(size_t node, const std::string& why);
  void on_leader_lost(const std::string& why);
  void check_deadlines();
  void exit_without_guard();

  // Sends what happened on this node to node 0's agent.
  void send_event(Event event);
  void send_stopped_if_idle();
  // Node 0 only: turns the events of all nodes into orders for all nodes.
  void issue(const std::optional<Order>& order);
  void process_events();
  // On every node: executes an order.
  void execute(const Order& order);
  void start(int attempt);
  void stop(const Order& order);
  void stop_workers(int signal);
  void kill_now();

  int lost_status() const { return user_signal_ != 0 ? 128 + user_signal_ : kLostStatus; }
  bool leads() const { return membership_.node_rank() == 0; }
  void print(const std::string& text) { output_.print("lockstep run: " + text); }
  void drain_output();

  const RunOptions& options_;
  GuardedContext context_;
  base::Fd signals_;
  Output output_;
  Gang gang_;
  Membership membership_;
  Contact contact_;
  std::string path_;                          // of the program
  std::optional<Job> job_;                    // node 0 only
  std::deque<std::pair<int, Event>> events_;  // node 0 only: node and event, not processed yet

  int attempt_ = 0;
  std::optional<Sweep> sweep_;  // ends what the workers have left running, after the last of them has ended
  bool stopping_ = false;       // the workers have been signalled to stop; their ends are not failures
  bool stop_ordered_ = false;   // node 0 expects Event::Kind::Stopped
  bool leader_lost_ = false;
  int stop_signal_ = 0;   // the signal that the workers were stopped with
  bool killing_ = false;  // without a grace period
  std::optional<Deadline> kill_at_;
  std::optional<Deadline> overdue_at_;  // all nodes must have stopped by then
  std::optional<Deadline> decide_at_;   // node 0 only: end of the wait for the cause of a failure
  int user_signal_ = 0;
  std::optional<Deadline> same_signal_until_;
  std::optional<int> status_;  // exit status, once the job has ended
};

int Agent::run_job() {
  auto enlisted =
      enlist(options_, signals_.get(), context_.guard.get(), [this](const auto& text) { print(text); });
  membership_ = std::move(enlisted.membership);
  path_ = std::move(enlisted.path);
  contact_ = Contact(std::move(membership_.connections),
                     std::chrono::milliseconds(membership_.welcome.node_timeout_ms));
  if (leads()) {
    job_.emplace(membership_.welcome);
    issue(job_->begin());
  }
  for (;;) {
    // Also before the first wait: orders may have arrived together with the welcome.
    receive_from_nodes();
    process_events();
    if (status_) break;
    wait();
    read_signals();
    reap_workers();
    step_sweep();
    check_deadlines();
  }
  return *status_;
}

void Agent::wait() {
  std::vector<pollfd> waiting{{signals_.get(), POLLIN, 0}, {context_.guard.get(), POLLIN, 0}};
  contact_.add_to(waiting);
  ::poll(waiting.data(), waiting.size(), next_deadline().poll_timeout(contact_.longest_wait()));
  if (waiting[1].revents != 0) exit_without_guard();
}

Deadline Agent::next_deadline() const {
  Deadline next = Deadline::in(sweep_ ? kSweepEvery : std::chrono::milliseconds(1h));
  for (const auto& at : {kill_at_, decide_at_, overdue_at_, gang_.reap_at()}) {
    if (at && at->remaining() < next.remaining()) next = *at;
  }
  return next;
}

void Agent::exit_without_guard() {
  end_descendants(0ms);
  // Without waiting for the output thread, which may be blocked.
  ::_exit(kGuardLostStatus);
}

void Agent::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info)
    on_signal(static_cast<int>(info.ssi_signo));
}

void Agent::on_signal(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return gang_.signal_workers(signal);
  if (signal == SIGTSTP) return gang_.signal_groups(SIGSTOP);
  if (signal == SIGCONT) return gang_.signal_groups(SIGCONT);
  if (!is_stop_signal(signal)) return;  // SIGCHLD: reap_workers() handles it
  if (signal == user_signal_) {
    if (signal != SIGINT || !same_signal_until_->expired()) return;
    print("SIGINT again: killing the workers");
    kill_now();
    return send_event({.kind = Event::Kind::Interrupted, .attempt = attempt_, .signal = SIGKILL});
  }
  user_signal_ = signal;
  same_signal_until_ = Deadline::in(kSameSignal);
  // Stop the workers now, even if node 0 cannot be reached.
  const auto ranks = gang_.running_ranks();
  print(fmt::format("{}: stopping {}", signal_name(signal),
                    ranks.empty() ? "the job"
                                  : fmt::format("rank {}; they have {:g} s{}", base::describe_ranks(ranks),
                                                static_cast<double>(options_.grace.count()) / 1000.0,
                                                signal == SIGINT ? ", Ctrl-C again kills them" : "")));
  stop_workers(signal);
  send_event({.kind = Event::Kind::Interrupted, .attempt = attempt_, .signal = signal});
}

void Agent::reap_workers() {
  const bool had_workers = !gang_.empty();
  const auto deadline = Deadline::in(300ms);  // for the output of all of them
  for (auto& end : gang_.take_ended()) {
    if (stopping_) continue;
    if (succeeded(end.wait_status)) {
      send_event({.kind = Event::Kind::Left, .attempt = attempt_, .rank = end.rank, .pid = end.pid});
      continue;
    }
    if (end.note && end.note->untold) {
      output_.append_to_log(end.rank, fmt::format("{}: {}", end.note->kind, end.note->message));
    }
    end.last_lines = output_.last_lines(end.rank, deadline.remaining());
    send_event({.kind = Event::Kind::Failed, .attempt = attempt_, .failure = std::move(end)});
  }
  if (!had_workers || !gang_.empty()) return;
  kill_at_.reset();
  sweep_.emplace(killing_ ? 0ms : std::chrono::milliseconds(kLeftoverGrace));
}

// In steps, because signals and messages of other nodes have to be handled meanwhile.
void Agent::step_sweep() {
  if (!sweep_ || sweep_->step()) return;
  sweep_.reset();
  // Also after a failure; node 0 distinguishes the two.
  if (!stopping_) send_event({.kind = Event::Kind::Finished, .attempt = attempt_});
  send_stopped_if_idle();
}

void Agent::send_stopped_if_idle() {
  if (!gang_.empty() || sweep_) return;
  if (stop_ordered_) {
    stop_ordered_ = false;
    send_event({.kind = Event::Kind::Stopped, .attempt = attempt_});
  }
  if (leader_lost_) status_ = lost_status();
}

void Agent::send_event(Event event) {
  if (leads()) {
    events_.emplace_back(0, std::move(event));
  } else {
    contact_.send_to_all(encode(event));
  }
}

void Agent::process_events() {
  while (!events_.empty()) {
    const auto [node, event] = std::move(events_.front());
    events_.pop_front();
    issue(job_->on(node, event));
  }
  if (job_ && job_->collecting() && !decide_at_) {
    decide_at_ = Deadline::in(std::chrono::milliseconds(Job::kCollectMs));
  }
}

void Agent::issue(const std::optional<Order>& order) {
  if (!order) return;
  decide_at_.reset();
  contact_.send_to_all(encode(*order));
  execute(*order);
}

void Agent::execute(const Order& order) {
  switch (order.kind) {
    case Order::Kind::Start:
      return start(order.attempt);
    case Order::Kind::Stop:
      return stop(order);
    case Order::Kind::End:
      if (!order.reason.empty()) print(order.reason);
      status_ = order.status;
  }
}

void Agent::start(int attempt) {
  attempt_ = attempt;
  stopping_ = false;
  killing_ = false;
  stop_signal_ = 0;
  overdue_at_.reset();
  // A single rank by default is rarely what the user wants, except on several nodes.
  if (attempt == 0 && options_.nproc_by_default && membership_.nnodes() == 1) {
    print(fmt::format("starting 1 rank; -n N (--nproc-per-node N) starts N, -n auto one for each {}",
                      available_gpus() > 0 ? "GPU" : "core"));
  }
  if (attempt > 0) print(fmt::format("restart {} of {}", attempt, membership_.welcome.max_restarts));
  RankEnd failure{.rank = membership_.first_rank(), .host = base::host_name()};
  try {
    return gang_.start(membership_, path_, attempt, [this] { contact_.keep_alive(); });
  } catch (const CannotStart& error) {
    failure.wait_status = as_wait_status(error.status());
    failure.not_started = error.what();
  } catch (const Error& error) {
    failure.wait_status = as_wait_status(1);
    failure.not_started = error.what();
  }
  send_event({.kind = Event::Kind::Failed, .attempt = attempt_, .failure = failure});
}

void Agent::stop(const Order& order) {
  if (order.failure) {
    output_.print_ahead(failure_report(
        *order.failure,
        {.world_size = membership_.world_size(),
         .several_nodes = membership_.nnodes() > 1,
         .attempt = order.attempt,
         .max_restarts = order.failure->not_started.empty() ? membership_.welcome.max_restarts : 0,
         .stopping = gang_.running_ranks(),
         .log_dir = options_.log_dir}));
  } else if (user_signal_ == 0 && !order.reason.empty()) {
    print(order.reason + ": stopping the job");
  }
  stop_ordered_ = true;
  if (order.signal == SIGKILL) {
    kill_now();
  } else {
    stop_workers(order.signal);
  }
  overdue_at_ =
      Deadline::in((killing_ ? 0ms : std::max(options_.grace, membership_.longest_grace)) + kStopMargin);
  send_stopped_if_idle();
}

void Agent::stop_workers(int signal) {
  // The order to stop may repeat the signal that this agent's user has sent: send it once.
  if (stop_signal_ == signal || stop_signal_ == SIGKILL) return;
  stopping_ = true;
  stop_signal_ = signal;
  gang_.signal_groups(signal);
  if (!kill_at_ && !gang_.empty()) kill_at_ = Deadline::in(options_.grace);
}

// The user does not want to wait: no grace period for anything.
void Agent::kill_now() {
  killing_ = true;
  stop_workers(SIGKILL);
  if (sweep_) sweep_->hurry();
}

void Agent::receive_from_nodes() {
  const auto lost = contact_.receive([this](size_t peer, const std::string& line) {
    return leads() ? on_follower_line(peer, line) : on_leader_line(line);
  });
  for (const auto& [peer, why] : lost) {
    if (leads()) {
      on_follower_lost(peer, why);
    } else {
      on_leader_lost(why);
    }
  }
}

bool Agent::on_follower_line(size_t node, const std::string& line) {
  auto event = decode_event(line);
  if (event) events_.emplace_back(static_cast<int>(node), std::move(*event));
  return event.has_value();
}

bool Agent::on_leader_line(const std::string& line) {
  const auto order = decode_order(line);
  if (order) execute(*order);
  return order.has_value();
}

void Agent::on_follower_lost(size_t node, const std::string& why) {
  process_events();  // those that it sent before
  const auto text = why.empty() ? "its agent closed the connection" : why;
  // If the job is not stopping yet, the order to stop contains the reason.
  if (job_->stopping())
    print(fmt::format("node {} ({}) is lost: {}", node, membership_.welcome.hosts[node], text));
  issue(job_->on_lost(static_cast<int>(node), text));
}

void Agent::on_leader_lost(const std::string& why) {
  if (status_) return;
  leader_lost_ = true;
  print(fmt::format("node 0 ({}) is lost: {}: stopping the job", membership_.welcome.hosts.front(),
                    why.empty() ? "its agent closed the connection" : why));
  stop_workers(SIGTERM);
  overdue_at_ = Deadline::in(options_.grace + kStopMargin);
  send_stopped_if_idle();
}

void Agent::check_deadlines() {
  if (kill_at_ && kill_at_->expired()) {
    kill_at_.reset();
    if (!gang_.empty()) {
      print(fmt::format("rank {} did not end within {:g} s: killed",
                        base::describe_ranks(gang_.running_ranks()),
                        static_cast<double>(options_.grace.count()) / 1000.0));
      stop_workers(SIGKILL);
    }
  }
  if (decide_at_ && decide_at_->expired()) {
    decide_at_.reset();
    issue(job_->on_collected());
  }
  if (overdue_at_ && overdue_at_->expired()) {
    overdue_at_.reset();
    if (leads()) issue(job_->on_overdue());
    if (leader_lost_) status_ = lost_status();
  }
}

// The reader of our output may be slow, for example a pager, so this waits until a signal arrives. After a
// stop signal, which may have arrived while the workers were still running, it waits only briefly.
void Agent::drain_output() {
  output_.finish();
  const auto deadline = Deadline::in(user_signal_ != 0 ? std::chrono::milliseconds(kDrainAfterSignal)
                                                       : std::chrono::hours(24 * 365));
  pollfd waiting[] = {
      {output_.done_fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}, {context_.guard.get(), POLLIN, 0}};
  for (;;) {
    ::poll(waiting, std::size(waiting), deadline.poll_timeout());
    if (waiting[0].revents != 0) return output_.join();
    bool enough = waiting[2].revents != 0 || deadline.expired();
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      enough = enough || is_stop_signal(static_cast<int>(info.ssi_signo));
    }
    if (enough) return output_.abandon();
  }
}

}  // namespace

int run_agent(const RunOptions& options, GuardedContext context) {
  // Never destroyed: its output thread may be blocked forever. The process ends with _exit().
  auto* agent = new Agent(options, std::move(context));
  return agent->run();
}

}  // namespace lockstep::launch
