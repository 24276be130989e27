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

// For what a worker left running when it ended.
constexpr auto kLeftoverGrace = 2s;
constexpr auto kSweepEvery = 5ms;
// Beyond the grace period, for a node to say that all has stopped: its leftovers, and processes that the
// kernel does not let go of.
constexpr auto kStopMargin = 30s;
// For the other agents to hear the end.
constexpr auto kGoodbyeTime = 2s;
// For output that nobody reads, once the user has told the job to end.
constexpr auto kDrainAfterSignal = 3s;
// A signal that comes to us twice within this time was sent once, to all processes of the job.
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
          base::compose({.what = "cannot make a signalfd", .evidence = base::errno_text(errno)}));
    }
  }

  int run() {
    int status = 0;
    try {
      status = run_job();
    } catch (const CannotStart& error) {
      if (*error.what() != '\0') say(error.what());
      status = error.status();
    } catch (const std::exception& error) {
      say(error.what());
      status = 1;
    }
    if (!gang_.empty() || sweep_) end_descendants(0ms);
    contact_.end(Deadline::in(kGoodbyeTime));
    drain_output();
    return status;
  }

 private:
  int run_job();

  // The loop, one function for each thing that it waits for.
  void wait();
  Deadline next_deadline() const;
  void hear_signals();
  void hear_signal(int signal);
  void hear_workers();
  void sweep_leftovers();
  void hear_nodes();
  bool hear_follower(size_t node, const std::string& line);
  bool hear_leader(const std::string& line);
  void lose_follower(size_t node, const std::string& why);
  void lose_leader(const std::string& why);
  void act_on_time();
  void end_at_once();

  // What happened here, to node 0's agent.
  void tell(Event event);
  void tell_when_stopped();
  // Node 0: what follows from it for all nodes.
  void issue(const std::optional<Order>& order);
  void process_events();
  // Everywhere: do it.
  void obey(const Order& order);
  void start(int attempt);
  void stop(const Order& order);
  void stop_workers(int signal);
  void kill_now();

  int lost_status() const { return user_signal_ != 0 ? 128 + user_signal_ : kLostStatus; }
  bool leads() const { return membership_.node_rank() == 0; }
  void say(const std::string& text) { output_.say("lockstep run: " + text); }
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
  std::deque<std::pair<int, Event>> events_;  // node 0 only: by node, not yet processed

  int attempt_ = 0;
  std::optional<Sweep> sweep_;  // of what the workers left running when the last of them ended
  bool stopping_ = false;       // they have been told to end; what they do now is no failure
  bool stop_ordered_ = false;   // node 0 waits to hear that they have ended
  bool leader_lost_ = false;
  int stop_signal_ = 0;   // what they were told to end with
  bool killing_ = false;  // somebody does not want to wait any longer
  std::optional<Deadline> kill_at_;
  std::optional<Deadline> overdue_at_;  // all must have stopped
  std::optional<Deadline> decide_at_;
  int user_signal_ = 0;
  std::optional<Deadline> same_signal_until_;
  std::optional<int> status_;  // the job has ended with it
};

int Agent::run_job() {
  auto enlisted =
      enlist(options_, signals_.get(), context_.guard.get(), [this](const auto& text) { say(text); });
  membership_ = std::move(enlisted.membership);
  path_ = std::move(enlisted.path);
  contact_ = Contact(std::move(membership_.connections),
                     std::chrono::milliseconds(membership_.welcome.node_timeout_ms));
  if (leads()) {
    job_.emplace(membership_.welcome);
    issue(job_->begin());
  }
  for (;;) {
    // Before the first wait, too: orders may have come together with the welcome.
    hear_nodes();
    process_events();
    if (status_) break;
    wait();
    hear_signals();
    hear_workers();
    sweep_leftovers();
    act_on_time();
  }
  return *status_;
}

void Agent::wait() {
  std::vector<pollfd> waiting{{signals_.get(), POLLIN, 0}, {context_.guard.get(), POLLIN, 0}};
  contact_.add_to(waiting);
  ::poll(waiting.data(), waiting.size(), next_deadline().poll_timeout(contact_.patience()));
  if (waiting[1].revents != 0) end_at_once();
}

Deadline Agent::next_deadline() const {
  Deadline next = Deadline::in(sweep_ ? kSweepEvery : std::chrono::milliseconds(1h));
  for (const auto& at : {kill_at_, decide_at_, overdue_at_}) {
    if (at && at->remaining() < next.remaining()) next = *at;
  }
  return next;
}

void Agent::end_at_once() {
  end_descendants(0ms);
  // The output may be blocked; nobody is left to wait for it.
  ::_exit(kGuardLostStatus);
}

void Agent::hear_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info)
    hear_signal(static_cast<int>(info.ssi_signo));
}

void Agent::hear_signal(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return gang_.signal_workers(signal);
  if (signal == SIGTSTP) return gang_.signal_groups(SIGSTOP);
  if (signal == SIGCONT) return gang_.signal_groups(SIGCONT);
  if (!is_stop_signal(signal)) return;  // SIGCHLD: see hear_workers()
  if (signal == user_signal_) {
    if (signal != SIGINT || !same_signal_until_->expired()) return;
    say("SIGINT again: killing the workers");
    kill_now();
    return tell({.kind = Event::Kind::Interrupted, .attempt = attempt_, .signal = SIGKILL});
  }
  user_signal_ = signal;
  same_signal_until_ = Deadline::in(kSameSignal);
  // At once, whether or not node 0 can be reached.
  const auto ranks = gang_.running_ranks();
  say(fmt::format("{}: stopping {}", signal_name(signal),
                  ranks.empty() ? "the job"
                                : fmt::format("rank {}; they have {:g} s{}", base::describe_ranks(ranks),
                                              static_cast<double>(options_.grace.count()) / 1000.0,
                                              signal == SIGINT ? ", Ctrl-C again kills them" : "")));
  stop_workers(signal);
  tell({.kind = Event::Kind::Interrupted, .attempt = attempt_, .signal = signal});
}

void Agent::hear_workers() {
  const bool had_workers = !gang_.empty();
  const auto patience = Deadline::in(300ms);  // for all together
  for (auto& end : gang_.reap()) {
    if (stopping_) continue;
    if (succeeded(end.wait_status)) {
      tell({.kind = Event::Kind::Left, .attempt = attempt_, .rank = end.rank, .pid = end.pid});
      continue;
    }
    if (end.note && end.note->untold) {
      output_.keep(end.rank, fmt::format("{}: {}", end.note->kind, end.note->message));
    }
    end.last_lines = output_.last_lines(end.rank, patience.remaining());
    tell({.kind = Event::Kind::Failed, .attempt = attempt_, .failure = std::move(end)});
  }
  if (!had_workers || !gang_.empty()) return;
  kill_at_.reset();
  sweep_.emplace(killing_ ? 0ms : std::chrono::milliseconds(kLeftoverGrace));
}

// A step at a time, since signals and the other nodes must be heard meanwhile.
void Agent::sweep_leftovers() {
  if (!sweep_ || sweep_->step()) return;
  sweep_.reset();
  // Also after a failure: node 0 knows which of the two it was.
  if (!stopping_) tell({.kind = Event::Kind::Finished, .attempt = attempt_});
  tell_when_stopped();
}

void Agent::tell_when_stopped() {
  if (!gang_.empty() || sweep_) return;
  if (stop_ordered_) {
    stop_ordered_ = false;
    tell({.kind = Event::Kind::Stopped, .attempt = attempt_});
  }
  if (leader_lost_) status_ = lost_status();
}

void Agent::tell(Event event) {
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
  obey(*order);
}

void Agent::obey(const Order& order) {
  switch (order.kind) {
    case Order::Kind::Start:
      return start(order.attempt);
    case Order::Kind::Stop:
      return stop(order);
    case Order::Kind::End:
      if (!order.reason.empty()) say(order.reason);
      status_ = order.status;
  }
}

void Agent::start(int attempt) {
  attempt_ = attempt;
  stopping_ = false;
  killing_ = false;
  stop_signal_ = 0;
  overdue_at_.reset();
  // One rank is seldom what a launcher is for. On several nodes it may be.
  if (attempt == 0 && options_.nproc_by_default && membership_.nnodes() == 1) {
    say(fmt::format("starting 1 rank; -n N (--nproc-per-node N) starts N, -n auto one for each {}",
                    available_gpus() > 0 ? "GPU" : "core"));
  }
  if (attempt > 0) say(fmt::format("restart {} of {}", attempt, membership_.welcome.max_restarts));
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
  tell({.kind = Event::Kind::Failed, .attempt = attempt_, .failure = failure});
}

void Agent::stop(const Order& order) {
  if (order.failure) {
    output_.say_at_once(failure_report(
        *order.failure,
        {.world_size = membership_.world_size(),
         .several_nodes = membership_.nnodes() > 1,
         .attempt = order.attempt,
         .max_restarts = order.failure->not_started.empty() ? membership_.welcome.max_restarts : 0,
         .stopping = gang_.running_ranks(),
         .log_dir = options_.log_dir}));
  } else if (user_signal_ == 0 && !order.reason.empty()) {
    say(order.reason + ": stopping the job");
  }
  stop_ordered_ = true;
  if (order.signal == SIGKILL) {
    kill_now();
  } else {
    stop_workers(order.signal);
  }
  overdue_at_ =
      Deadline::in((killing_ ? 0ms : std::max(options_.grace, membership_.longest_grace)) + kStopMargin);
  tell_when_stopped();
}

void Agent::stop_workers(int signal) {
  // An order to stop may repeat the signal that our own user sent; the workers get it once.
  if (stop_signal_ == signal || stop_signal_ == SIGKILL) return;
  stopping_ = true;
  stop_signal_ = signal;
  gang_.signal_groups(signal);
  if (!kill_at_ && !gang_.empty()) kill_at_ = Deadline::in(options_.grace);
}

// The user has waited long enough: no grace for anything.
void Agent::kill_now() {
  killing_ = true;
  stop_workers(SIGKILL);
  if (sweep_) sweep_->hurry();
}

void Agent::hear_nodes() {
  const auto lost = contact_.hear([this](size_t peer, const std::string& line) {
    return leads() ? hear_follower(peer, line) : hear_leader(line);
  });
  for (const auto& [peer, why] : lost) {
    if (leads()) {
      lose_follower(peer, why);
    } else {
      lose_leader(why);
    }
  }
}

bool Agent::hear_follower(size_t node, const std::string& line) {
  auto event = decode_event(line);
  if (event) events_.emplace_back(static_cast<int>(node), std::move(*event));
  return event.has_value();
}

bool Agent::hear_leader(const std::string& line) {
  const auto order = decode_order(line);
  if (order) obey(*order);
  return order.has_value();
}

void Agent::lose_follower(size_t node, const std::string& why) {
  process_events();  // what it said before
  const auto text = why.empty() ? "its agent closed the connection" : why;
  // Otherwise the order to stop gives the reason.
  if (job_->stopping())
    say(fmt::format("node {} ({}) is lost: {}", node, membership_.welcome.hosts[node], text));
  issue(job_->on_lost(static_cast<int>(node), text));
}

void Agent::lose_leader(const std::string& why) {
  if (status_) return;
  leader_lost_ = true;
  say(fmt::format("node 0 ({}) is lost: {}: stopping the job", membership_.welcome.hosts.front(),
                  why.empty() ? "its agent closed the connection" : why));
  stop_workers(SIGTERM);
  overdue_at_ = Deadline::in(options_.grace + kStopMargin);
  tell_when_stopped();
}

void Agent::act_on_time() {
  if (kill_at_ && kill_at_->expired()) {
    kill_at_.reset();
    if (!gang_.empty()) {
      say(fmt::format("rank {} did not end within {:g} s: killed",
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

// The reader of our output may take its time, a pager for instance; a signal ends the waiting. After a signal
// to stop, which may have come while the workers were still ending, nobody wants to wait long.
void Agent::drain_output() {
  output_.finish();
  const auto patience = Deadline::in(user_signal_ != 0 ? std::chrono::milliseconds(kDrainAfterSignal)
                                                       : std::chrono::hours(24 * 365));
  pollfd waiting[] = {
      {output_.done_fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}, {context_.guard.get(), POLLIN, 0}};
  for (;;) {
    ::poll(waiting, std::size(waiting), patience.poll_timeout());
    if (waiting[0].revents != 0) return output_.join();
    bool enough = waiting[2].revents != 0 || patience.expired();
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      enough = enough || is_stop_signal(static_cast<int>(info.ssi_signo));
    }
    if (enough) return output_.abandon();
  }
}

}  // namespace

int run_agent(const RunOptions& options, GuardedContext context) {
  // Never destroyed: its output thread may be blocked for good, and the process ends with _exit.
  auto* agent = new Agent(options, std::move(context));
  return agent->run();
}

}  // namespace lockstep::launch
