#include "nccl/engine.h"

#include <fmt/format.h>
#include <memory>
#include <utility>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <lockstep/error.h>

#include "base/log.h"

#ifdef USE_C10D_NCCL
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace lockstep::nccl {

namespace {

std::function<bool()> mark_on(c10::Device device) {
  const c10::impl::VirtualGuardImpl streams(device.type());
  const auto at = device.has_index() ? device : streams.getDevice();
  auto reached = std::make_shared<c10::Event>(device.type());
  reached->record(streams.getStream(at));
  return [reached = std::move(reached)] {
    try {
      return reached->query();
    } catch (const std::exception& error) {
      base::log_debug("the device executes nothing more: {}", error.what());
      return true;
    }
  };
}

}  // namespace

void use_device(c10::Device device) { c10::impl::VirtualGuardImpl(device.type()).uncheckedSetDevice(device); }

#ifdef USE_C10D_NCCL

namespace {

// With the names that LibTorch's versions have given it.
template <class Nccl>
void abort_calls(Nccl& backend) {
  if constexpr (requires { backend.abort(); }) {
    backend.abort();
  } else if constexpr (requires { backend.shutdown(); }) {
    backend.shutdown();
  }  // otherwise, the destructor does it
}

}  // namespace

bool has_nccl() { return true; }

bool is_nccl(const c10d_backend& backend) {
  return dynamic_cast<const c10d::ProcessGroupNCCL*>(&backend) != nullptr;
}

std::vector<std::string> visible_devices() {
  std::vector<std::string> identities;
  try {
    for (int index = 0; index < c10::cuda::device_count(); ++index) {
      std::string identity;
      for (const char byte : at::cuda::getDeviceProperties(index)->uuid.bytes) {
        identity += fmt::format("{:02x}", static_cast<unsigned char>(byte));
      }
      identities.push_back(std::move(identity));
    }
  } catch (const std::exception& error) {
    base::log_debug("the CUDA devices cannot be listed: {}", error.what());
    identities.clear();
  }
  return identities;
}

Engine make_engine(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                   std::chrono::milliseconds timeout, c10::Device device) {
  const auto connect = [store = std::move(store), rank, world_size, timeout] {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    return c10::intrusive_ptr<c10d_backend>(
        c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, world_size, options));
  };
  const auto abort = [](c10d_backend& backend) {
    abort_calls(dynamic_cast<c10d::ProcessGroupNCCL&>(backend));
  };
  // LibTorch warns if a backend is destroyed without it.
  return {.connect = connect, .abort = abort, .close = abort, .mark = [device] { return mark_on(device); }};
}

#else

bool has_nccl() { return false; }

bool is_nccl(const c10d_backend&) { return false; }

std::vector<std::string> visible_devices() { return {}; }

Engine make_engine(c10::intrusive_ptr<c10d::Store>, int, int, std::chrono::milliseconds, c10::Device device) {
  const auto refuse = []() -> c10::intrusive_ptr<c10d_backend> {
    throw UsageError("this LibTorch was built without NCCL\nhint: use a LibTorch for CUDA");
  };
  const auto nothing = [](c10d_backend&) {};
  return {
      .connect = refuse, .abort = nothing, .close = nothing, .mark = [device] { return mark_on(device); }};
}

#endif

Engine engine_of(c10::intrusive_ptr<c10d_backend> backend, c10::Device device) {
  auto engine = make_engine({}, backend->getRank(), backend->getSize(), {}, device);
  engine.connect = [backend = std::move(backend)] { return backend; };
  engine.close = [](c10d_backend&) {};  // the user closes it
  return engine;
}

}  // namespace lockstep::nccl
