#include "base/uncaught.h"

#include <cstdio>
#include <cxxabi.h>
#include <exception>
#include <fmt/format.h>
#include <string>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/log.h"
#include "base/note.h"

namespace lockstep::base {

namespace {

// Writes what the program has printed so far. Skipped if another thread holds the lock of stdout, since it
// may never release it.
void flush_stdout() {
  if (::ftrylockfile(stdout) != 0) return;
  ::fflush_unlocked(stdout);
  ::funlockfile(stdout);
}

void print_error(const Error& error) {
  if (log_enabled(LogLevel::Error)) {
    log_error("{}: {}", error.kind(), error.what());
  } else {
    fmt::print(stderr, "lockstep error: {}: {}\n", error.kind(), error.what());
  }
}

[[noreturn]] void at_terminate() {
  try {
    if (const auto uncaught = std::current_exception()) std::rethrow_exception(uncaught);
  } catch (const Error& error) {
    flush_stdout();
    if (!write_note({std::string(error.kind()), error.what(), {}, /*untold=*/true})) print_error(error);
    ::_exit(1);
  } catch (...) {
  }
  __gnu_cxx::__verbose_terminate_handler();
  std::abort();
}

}  // namespace

void report_uncaught_errors() {
  if (std::get_terminate() == __gnu_cxx::__verbose_terminate_handler) std::set_terminate(at_terminate);
}

}  // namespace lockstep::base
