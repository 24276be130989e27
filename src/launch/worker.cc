#include "launch/worker.h"

#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error_text.h"
#include "launch/limits.h"
#include "launch/program.h"
#include "tuning/plan.h"

namespace lockstep::launch {

namespace {

using base::compose;
using base::errno_text;
using base::Fd;

struct Pipe {
  Fd read;
  Fd write;
};

[[noreturn]] void refuse(const std::string& path, int error_number) {
  throw CannotStart(
      1, compose(
             {.what = fmt::format("cannot start \"{}\"", path),
              .evidence = errno_text(error_number),
              .hint = error_number == EAGAIN
                          ? "the limit of processes is reached: check ulimit -u and, in a container, pids.max"
                      : error_number == EMFILE || error_number == ENFILE
                          ? "the limit of open files is reached: raise ulimit -n"
                          : "start fewer workers (--nproc-per-node)"}));
}

Pipe make_pipe(const std::string& path, int flags = 0) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | flags) != 0) refuse(path, errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> list;
  list.reserve(strings.size() + 1);
  for (const auto& string : strings) list.push_back(const_cast<char*>(string.c_str()));
  list.push_back(nullptr);
  return list;
}

// Everything that the child needs, prepared before the fork: the child must not allocate, because another
// thread of the agent may hold the heap's lock during the fork.
struct ChildSetup {
  const char* path;
  char** arguments;
  char** shell_arguments;
  char** environment;
  const std::vector<int>* cpus;
  const Signals* signals;
  int in, out, err, note, failed;
  pid_t agent;
};

[[noreturn]] void become_worker(const ChildSetup& setup) {
  // A process group for signals, and a session: with autogroups, the kernel divides CPU time among sessions,
  // so ranks that share one would together get only as much as any other job.
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // If the agent died before prctl(), the kernel will not send the signal.
  if (::getppid() != setup.agent) ::_exit(1);
  ::dup2(setup.in, STDIN_FILENO);
  ::dup2(setup.out, STDOUT_FILENO);
  ::dup2(setup.err, STDERR_FILENO);
  ::fcntl(setup.note, F_SETFD, 0);
  if (!setup.cpus->empty()) tuning::bind_this_thread(*setup.cpus);
  raise_open_files();
  setup.signals->give_back();
  ::execve(setup.path, setup.arguments, setup.environment);
  int error_number = errno;
  // Like execvp(3): the shell runs a script without "#!".
  if (error_number == ENOEXEC) {
    ::execve("/bin/sh", setup.shell_arguments, setup.environment);
  }
  [[maybe_unused]] const auto written = ::write(setup.failed, &error_number, sizeof error_number);
  ::_exit(kNotExecutable);
}

}  // namespace

WorkerProcess start_worker(const WorkerSpec& spec, const Signals& signals) {
  Pipe out = make_pipe(spec.path);
  Pipe err = make_pipe(spec.path);
  // Both ends are non-blocking: a worker that writes more notes than fit into the pipe must not block.
  Pipe note = make_pipe(spec.path, O_NONBLOCK);
  Pipe failed = make_pipe(spec.path);
  const Fd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!in) refuse("/dev/null", errno);
  for (const Fd* end : {&out.read, &err.read}) ::fcntl(end->get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> environment = spec.environment;
  environment.push_back(fmt::format("LOCKSTEP_NOTE_FD={}", note.write.get()));
  auto shell = spec.arguments;
  if (!shell.empty()) shell.front() = spec.path;
  shell.insert(shell.begin(), "sh");
  auto argument_pointers = pointers(spec.arguments);
  auto shell_pointers = pointers(shell);
  auto environment_pointers = pointers(environment);
  const ChildSetup setup{.path = spec.path.c_str(),
                         .arguments = argument_pointers.data(),
                         .shell_arguments = shell_pointers.data(),
                         .environment = environment_pointers.data(),
                         .cpus = &spec.cpus,
                         .signals = &signals,
                         .in = in.get(),
                         .out = out.write.get(),
                         .err = err.write.get(),
                         .note = note.write.get(),
                         .failed = failed.write.get(),
                         .agent = ::getpid()};

  const pid_t pid = ::fork();
  if (pid < 0) refuse(spec.path, errno);
  if (pid == 0) become_worker(setup);

  // exec closes the pipe, so the process group exists once the read returns.
  failed.write.reset();
  int error_number = 0;
  ssize_t got = 0;
  do {
    got = ::read(failed.read.get(), &error_number, sizeof error_number);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof error_number) {
    ::waitpid(pid, nullptr, 0);
    throw cannot_execute(spec.path, error_number);
  }
  return {pid, std::move(out.read), std::move(err.read), std::move(note.read)};
}

}  // namespace lockstep::launch
