// What an action throws.
#pragma once

#include <exception>
#include <functional>
#include <gtest/gtest.h>
#include <string>

namespace lockstep::testing {

// The message of its exception, which must be of this kind; otherwise the test fails.
template <class Exception>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace lockstep::testing
