// What a program prints when nobody catches one of lockstep's errors.
#pragma once

namespace lockstep::base {

// From now on, an Error that nobody catches is printed once, with its rank, and ends the process with status
// 1: by the agent that reads this process's note where there is one, otherwise on stderr. Other exceptions,
// and programs that have a std::terminate_handler of their own, are left alone. Cheap when repeated.
void report_uncaught_errors();

}  // namespace lockstep::base
