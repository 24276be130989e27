// LibTorch's NCCL backend and its CUDA devices, if this LibTorch has them.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/c10d.h>

namespace lockstep::nccl {

bool has_nccl();
bool is_nccl(const c10d_backend& backend);

// The identities of the CUDA devices that this process sees, by index. Initialises the driver, but uses no
// memory of the devices. Empty without devices, a driver or a LibTorch for CUDA; does not throw.
std::vector<std::string> visible_devices();

// Makes the device this thread's current one, which "cuda" without a number refers to.
void use_device(c10::Device device);

// What the transport needs of a backend and a device; tests have their own.
struct Engine {
  // Creates the backend. Does not communicate.
  std::function<c10::intrusive_ptr<c10d_backend>()> connect;
  // Ends the calls that the device executes, and the backend's threads. May block for a while.
  std::function<void(c10d_backend& backend)> abort;
  // Releases what the backend holds. No call is in progress.
  std::function<void(c10d_backend& backend)> close;
  // Returns a function that says whether the device has executed everything that is queued on the current
  // stream now. Any thread may call it.
  std::function<std::function<bool()>()> mark;
};

// `device`: of this rank. NCCL connects the ranks through the store, in their first call.
Engine make_engine(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                   std::chrono::milliseconds timeout, c10::Device device);
// For a backend of the user.
Engine engine_of(c10::intrusive_ptr<c10d_backend> backend, c10::Device device);

}  // namespace lockstep::nccl
