// `lockstep run`
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "cli/commands.h"
#include "launch/agent.h"
#include "launch/arguments.h"
#include "launch/guard.h"
#include "launch/limits.h"
#include "tuning/plan.h"

namespace lockstep::cli {

namespace {

// Opens closed standard files. Otherwise a pipe could get one of their numbers, and dup2(2) would close it
// when a worker is started.
void open_standard_files() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

}  // namespace

int run(const std::vector<std::string>& arguments) {
  open_standard_files();
  try {
    const auto parsed = launch::parse_run_arguments(arguments);
    if (const auto* help = std::get_if<launch::HelpText>(&parsed)) {
      fmt::print("{}", help->text);
      return 0;
    }
    const auto& options = std::get<launch::RunOptions>(parsed);
    tuning::switches_from_environment();  // reports an invalid value once, instead of in every worker
    launch::make_room_for(options.nproc, options.nnodes);
    return launch::run_guarded(
        [&](launch::GuardedContext context) { return launch::run_agent(options, std::move(context)); });
  } catch (const UsageError& error) {
    fmt::print(stderr, "lockstep run: {}\n", error.what());
    return kUsage;
  } catch (const Error& error) {
    fmt::print(stderr, "lockstep run: {}\n", error.what());
    return 1;
  }
}

}  // namespace lockstep::cli
