// One line instead of hundreds for compilers in an older mode.
#pragma once

// GCC 10's number for C++20.
#if __cplusplus < 201709L
#error \
    "lockstep needs C++20: compile with -std=c++20, or in CMake target_compile_features(app PRIVATE cxx_std_20)"
#endif
