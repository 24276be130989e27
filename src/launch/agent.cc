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
#include "launch/descendants.h"
#include "launch/enlist.h"
#include "launch/gang.h"
#include "launch/job.h"
#include "launch/output.h"
#include "launch/program.h"
#include "launch/report.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;
using base::Deadline;

// For what a worker left running when it ended.
constexpr auto kLeftoverGrace = 2s;
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
    if (!gang_.empty()) end_descendants(0ms);
    close_connections();
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
  void hear_nodes();
  void hear_followers();
  void hear_leader();
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

  bool leads() const { return membership_.node_rank() == 0; }
  void say(const std::string& text) { output_.say("lockstep run: " + text); }
  void close_connections();
  void drain_output();

  const RunOptions& options_;
  GuardedContext context_;
  base::Fd signals_;
  Output output_;
  Gang gang_;
  Membership membership_;
  std::string path_;                          // of the program
  std::optional<Job> job_;                    // node 0 only
  std::deque<std::pair<int, Event>> events_;  // node 0 only: by node, not yet processed

  int attempt_ = 0;
  bool stopping_ = false;      // they have been told to end; what they do now is no failure
  bool stop_ordered_ = false;  // node 0 waits to hear that they have ended
  bool leader_lost_ = false;
  int stop_signal_ = 0;  // what they were told to end with
  std::optional<Deadline> kill_at_;
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
  if (leads()) {
    job_.emplace(membership_.welcome.hosts, membership_.welcome.max_restarts);
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
    act_on_time();
  }
  return *status_;
}

void Agent::wait() {
  std::vector<pollfd> waiting{{signals_.get(), POLLIN, 0}, {context_.guard.get(), POLLIN, 0}};
  for (const auto& connection : membership_.connections) {
    if (!connection || !connection->open()) continue;
    const int events = POLLIN | (connection->wants_to_write() ? POLLOUT : 0);
    waiting.push_back({connection->fd(), static_cast<short>(events), 0});
  }
  ::poll(waiting.data(), waiting.size(), next_deadline().poll_timeout());
  if (waiting[1].revents != 0) end_at_once();
}

Deadline Agent::next_deadline() const {
  Deadline next = Deadline::in(1h);
  for (const auto& at : {kill_at_, decide_at_}) {
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
    stop_workers(SIGKILL);
    return tell({.kind = Event::Kind::Interrupted, .attempt = attempt_, .signal = SIGKILL});
  }
  user_signal_ = signal;
  same_signal_until_ = Deadline::in(kSameSignal);
  // At once, whether or not node 0 can be reached.
  const auto ranks = gang_.running_ranks();
  say(fmt::format("{}: stopping {}", signal_name(signal),
                  ranks.empty() ? "the job"
                                : fmt::format("rank {}; they have {:g} s{}", rank_ranges(ranks),
                                              static_cast<double>(options_.grace.count()) / 1000.0,
                                              signal == SIGINT ? ", Ctrl-C again kills them" : "")));
  stop_workers(signal);
  tell({.kind = Event::Kind::Interrupted, .attempt = attempt_, .signal = signal});
}

void Agent::hear_workers() {
  const bool had_workers = !gang_.empty();
  const auto patience = Deadline::in(300ms);  // for all together
  for (auto& failure : gang_.reap()) {
    if (stopping_) continue;
    failure.last_lines = output_.last_lines(failure.rank, patience.remaining());
    tell({.kind = Event::Kind::Failed, .attempt = attempt_, .failure = std::move(failure)});
  }
  if (!had_workers || !gang_.empty()) return;
  end_descendants(kLeftoverGrace);
  kill_at_.reset();
  // Also after a failure: node 0 knows which of the two it was.
  if (!stopping_) tell({.kind = Event::Kind::Finished, .attempt = attempt_});
  tell_when_stopped();
}

void Agent::tell_when_stopped() {
  if (!gang_.empty()) return;
  if (stop_ordered_) {
    stop_ordered_ = false;
    tell({.kind = Event::Kind::Stopped, .attempt = attempt_});
  }
  if (leader_lost_) status_ = kLostStatus;
}

void Agent::tell(Event event) {
  if (leads()) {
    events_.emplace_back(0, std::move(event));
  } else {
    membership_.connections.front()->send(encode(event));
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
  for (const auto& connection : membership_.connections) {
    if (connection) connection->send(encode(*order));
  }
  obey(*order);
}

void Agent::obey(const Order& order) {
  switch (order.kind) {
    case Order::Kind::Start:
      return start(order.attempt);
    case Order::Kind::Stop:
      return stop(order);
    case Order::Kind::End:
      status_ = order.status;
  }
}

void Agent::start(int attempt) {
  attempt_ = attempt;
  stopping_ = false;
  stop_signal_ = 0;
  if (attempt > 0) say(fmt::format("restart {} of {}", attempt, membership_.welcome.max_restarts));
  Failure failure{.rank = membership_.first_rank(), .host = base::host_name()};
  try {
    return gang_.start(membership_, path_, attempt);
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
         .attempt = order.attempt,
         .max_restarts = order.failure->not_started.empty() ? membership_.welcome.max_restarts : 0,
         .stopping = gang_.running_ranks(),
         .log_dir = options_.log_dir}));
  } else if (user_signal_ == 0 && !order.reason.empty()) {
    say(order.reason + ": stopping the job");
  }
  stop_ordered_ = true;
  stop_workers(order.signal);
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

void Agent::hear_nodes() {
  if (leads()) {
    hear_followers();
  } else {
    hear_leader();
  }
}

void Agent::hear_followers() {
  for (size_t node = 1; node < membership_.connections.size(); ++node) {
    auto& connection = membership_.connections[node];
    if (!connection) continue;
    connection->flush();
    connection->receive();
    std::string trouble;
    while (const auto line = connection->next_line()) {
      const auto event = decode_event(*line);
      if (!event) {
        trouble = "it sent something that is not of this protocol";
        connection->close();
        break;
      }
      events_.emplace_back(static_cast<int>(node), *event);
    }
    if (connection->open()) continue;
    process_events();
    if (trouble.empty()) trouble = connection->trouble();
    connection.reset();
    issue(job_->on_lost(static_cast<int>(node), trouble));
  }
}

void Agent::hear_leader() {
  auto& connection = *membership_.connections.front();
  connection.flush();
  connection.receive();
  while (const auto line = connection.next_line()) {
    if (const auto order = decode_order(*line)) {
      obey(*order);
    } else {
      connection.close();
    }
  }
  if (connection.open() || status_ || leader_lost_) return;
  leader_lost_ = true;
  say(fmt::format("node 0 ({}) is lost: {}: stopping the job", membership_.welcome.hosts.front(),
                  connection.trouble().empty() ? "its agent closed the connection" : connection.trouble()));
  stop_workers(SIGTERM);
  tell_when_stopped();
}

void Agent::act_on_time() {
  if (kill_at_ && kill_at_->expired()) {
    kill_at_.reset();
    if (!gang_.empty()) {
      say(fmt::format("rank {} did not end within {:g} s: killed", rank_ranges(gang_.running_ranks()),
                      static_cast<double>(options_.grace.count()) / 1000.0));
      stop_workers(SIGKILL);
    }
  }
  if (decide_at_ && decide_at_->expired()) {
    decide_at_.reset();
    issue(job_->on_collected());
  }
}

void Agent::close_connections() {
  const auto deadline = Deadline::in(2s);
  for (const auto& connection : membership_.connections) {
    if (connection) connection->close_gracefully(deadline);
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
