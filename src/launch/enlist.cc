#include "launch/enlist.h"

#include <fmt/format.h>
#include <future>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <thread>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/fd.h"
#include "launch/gang.h"
#include "launch/program.h"
#include "launch/signals.h"
#include "launch/verdict.h"

namespace lockstep::launch {

namespace {

std::string check_this_node(const RunOptions& options) {
  if (!options.log_dir.empty()) prepare_log_dir(options.log_dir);
  return find_program(options.command.front());
}

// Blocks until `done` is readable. Ends the process on a stop signal or at the end of the guard.
void wait_for(int done, int signals, int guard) {
  pollfd waiting[] = {{done, POLLIN, 0}, {signals, POLLIN, 0}, {guard, POLLIN, 0}};
  for (;;) {
    ::poll(waiting, std::size(waiting), -1);
    if (waiting[0].revents != 0) return;
    if (waiting[2].revents != 0) ::_exit(128 + SIGKILL);
    signalfd_siginfo info{};
    while (::read(signals, &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (!is_stop_signal(signal)) continue;
      fmt::print(stderr, "lockstep run: {} while waiting for the other nodes\n", signal_name(signal));
      ::_exit(128 + signal);
    }
  }
}

}  // namespace

Enlisted enlist(const RunOptions& options, int signals, int guard,
                const std::function<void(const std::string&)>& print) {
  if (options.nnodes == 1) {
    auto path = check_this_node(options);
    return {alone(options.nproc, options.max_restarts, options.port), std::move(path)};
  }
  JoinRequest request{.nnodes = options.nnodes,
                      .node_rank = options.node_rank,
                      .address = options.address,
                      .port = options.port,
                      .run_id = options.run_id,
                      .nproc = options.nproc,
                      .max_restarts = options.max_restarts,
                      .timeout = options.timeout,
                      .node_timeout = options.node_timeout,
                      .grace = options.grace,
                      .token = options.token};
  std::string path;
  try {
    path = check_this_node(options);
  } catch (const Error& error) {
    const auto* start = dynamic_cast<const CannotStart*>(&error);
    request.problem = error.what();
    request.problem_status = start != nullptr ? start->status() : 1;
    print(request.problem);
  }

  // On another thread, because joining can take long and signals have to be handled meanwhile.
  std::packaged_task<Membership()> task(
      [&] { return join(request, [&](const std::string& text) { print("warning: " + text); }); });
  auto membership = task.get_future();
  const base::Fd done(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::thread joining([&] {
    task();
    ::eventfd_write(done.get(), 1);
  });
  wait_for(done.get(), signals, guard);
  joining.join();
  if (!request.problem.empty()) throw CannotStart(request.problem_status, "");
  return {membership.get(), std::move(path)};
}

}  // namespace lockstep::launch
