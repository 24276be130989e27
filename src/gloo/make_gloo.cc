#include "gloo/make_gloo.h"

#include <lockstep/error.h>

#include "gloo/no_sigpipe.h"
#include "gloo/patient_threads.h"

#ifdef USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

namespace lockstep::gloo {

#ifdef USE_C10D_GLOO

namespace {

struct GlooInside : c10d::ProcessGroupGloo {
  static constexpr uint32_t c10d::ProcessGroupGloo::*kTag = &GlooInside::collectiveCounter_;
};

}  // namespace

bool has_gloo() { return true; }

bool is_gloo(const c10d_backend& backend) {
  return dynamic_cast<const c10d::ProcessGroupGloo*>(&backend) != nullptr;
}

int connections_of(c10d_backend& gloo) {
  return static_cast<int>(dynamic_cast<c10d::ProcessGroupGloo&>(gloo).getOptions()->devices.size());
}

void mark_next_collective(c10d_backend& gloo, uint32_t bits) {
  // The low bits continue to count, so that simultaneous calls have different tags.
  auto& tag = dynamic_cast<c10d::ProcessGroupGloo&>(gloo).*GlooInside::kTag;
  tag = bits << 8 | (tag & 0xff);
}

c10::intrusive_ptr<c10d_backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int world_size, std::chrono::milliseconds timeout,
                                           const std::vector<std::string>& addresses) {
  const NoSigpipe quiet;  // for Gloo's threads
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  // Like Python's torch.distributed: on each connection, two collectives can be in progress at a time.
  options->threads = 2 * static_cast<int>(addresses.size());
  {
    // Gloo's event thread locks a connection only if the lock is free, and retries at once if it is not. If
    // it has just preempted the thread that holds the lock, it retries until its time slice ends:
    // milliseconds for every message.
    const PatientThreads event_thread;
    for (const auto& address : addresses)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world_size, options);
}

#else

bool has_gloo() { return false; }

bool is_gloo(const c10d_backend&) { return false; }

int connections_of(c10d_backend&) { return 0; }

void mark_next_collective(c10d_backend&, uint32_t) {}

c10::intrusive_ptr<c10d_backend> make_gloo(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                           std::chrono::milliseconds, const std::vector<std::string>&) {
  throw UsageError(
      "this LibTorch was built without Gloo\nhint: use a LibTorch built with USE_GLOO, such as Debian's");
}

#endif

}  // namespace lockstep::gloo
