# What lockstep builds on. `make setup` installs all of it from Debian's packages; an official LibTorch is
# used instead with -DCMAKE_PREFIX_PATH=/path/to/libtorch.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Torch REQUIRED)

# LibTorch's Gloo header includes Gloo's own, which no LibTorch package brings along.
find_path(GLOO_INCLUDE_DIR gloo/context.h)
if(NOT GLOO_INCLUDE_DIR)
  message(FATAL_ERROR "Gloo's headers were not found. On Debian: apt-get install libgloo-dev")
endif()

# In C++20, clang reads the headers of LibTorch 1 only after this one, in programs that use lockstep as well as in its own.
set(torch_options)
if(Torch_VERSION VERSION_LESS 2)
  set(torch_options "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-include ATen/core/ivalue.h>")
endif()
target_compile_options(torch INTERFACE ${torch_options})

message(STATUS "LibTorch ${Torch_VERSION} from ${TORCH_INSTALL_PREFIX}")
