// Validators for numbers on the command line, with readable errors.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <string>

namespace mingpt {

inline CLI::Validator check_number(bool (*good)(double), const char* what) {
  return CLI::Validator(
      [good, what](std::string& text) {
        char* end = nullptr;
        const double number = std::strtod(text.c_str(), &end);
        const bool is = *end == '\0' && std::isfinite(number) && good(number);
        return is ? std::string() : "\"" + text + "\" is not a number " + what;
      },
      "");
}

inline CLI::Validator above_zero() {
  return check_number([](double number) { return number > 0; }, "above zero");
}
inline CLI::Validator not_negative() {
  return check_number([](double number) { return number >= 0; }, "greater than or equal to zero");
}

}  // namespace mingpt
