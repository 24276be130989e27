// For bindings of the c10d backends to another language, such as lockstep's Python package.
#pragma once

#include <exception>

#include <lockstep/error.h>

namespace lockstep::bindings {

// From now on, the works and futures of lockstep's own c10d backends fail with what `translate` returns, in
// place of each Error. It is called from any thread, and must not throw. Code between a backend and the other
// language may keep only the exceptions that it knows: PyTorch's autograd does so.
void translate_errors(std::exception_ptr (*translate)(const Error& error));

// From now on, futures do not complete, and their callbacks are not called: the interpreter that they may
// need is about to end. Waits for callbacks that are running, for up to a second.
void stop_callbacks();

}  // namespace lockstep::bindings
