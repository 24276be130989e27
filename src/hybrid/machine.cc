#include "hybrid/machine.h"

#include <stdexcept>
#include <utility>

#include "comm/single.h"

namespace lockstep::hybrid {

namespace {

// A call that may continue when its caller has given up.
struct Kept final : shm::Completion {
  explicit Kept(comm::Request&& described) : request(std::move(described)), call(request) {
    call.owner = this;
  }
  void completed() noexcept override { const auto last_reference = std::move(self); }
  void conclude() noexcept override {}

  comm::Request request;
  shm::Call call;
  std::shared_ptr<Kept> self;
};

}  // namespace

void Machine::run(Half half, comm::Request&& request, const std::function<bool()>& hopeless) {
  if (alone()) {
    comm::SingleTransport().run(request);
    return;
  }
  const auto kept = std::make_shared<Kept>(std::move(request));
  kept->self = kept;
  try {
    if (of(half).run_unless(kept->call, hopeless)) return;
  } catch (...) {
    if (!kept->call.complete) kept->self.reset();  // it was not started
    throw;
  }
  throw std::runtime_error("the wait was given up");
}

}  // namespace lockstep::hybrid
