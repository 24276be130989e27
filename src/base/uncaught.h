// Prints lockstep errors that the program does not catch.
#pragma once

namespace lockstep::base {

// Installs a terminate handler: an uncaught Error is printed once, with its rank, and ends the process with
// status 1. The launcher prints it if it reads this process's note, otherwise this process does, on stderr.
// Other exceptions are unaffected, and a std::terminate_handler of the program is kept. Cheap when repeated.
void report_uncaught_errors();

}  // namespace lockstep::base
