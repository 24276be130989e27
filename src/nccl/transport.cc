#include "nccl/transport.h"

#include <chrono>
#include <fmt/format.h>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>

#include "base/aside.h"
#include "base/error_text.h"
#include "base/log.h"
#include "comm/diagnose.h"
#include "comm/failure.h"

namespace lockstep::nccl {

namespace {

using namespace std::chrono_literals;
using comm::Kind;

constexpr auto kCheckInterval = 200ms;
constexpr auto kPollInterval = 1ms;

bool is_bitwise(ReduceOp op) { return op == ReduceOp::Band || op == ReduceOp::Bor || op == ReduceOp::Bxor; }

// The types that NCCL adds up. Moved data is sent as bytes.
bool reduces(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kBool:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

// Complex numbers are added up as pairs of real ones.
c10::ScalarType reduced_as(c10::ScalarType dtype) {
  return c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype;
}

// Empty if NCCL can execute the request.
std::string obstacle(const comm::Request& request) {
  if (comm::is_message(request)) {
    return request.tag == 0 ? "" : "NCCL matches messages only by their order, so all must have tag 0";
  }
  if (!comm::pattern_of(request.kind).reduces) return {};
  if (is_bitwise(request.op)) return "NCCL has no bitwise operations";
  const bool adds = request.op == ReduceOp::Sum || request.op == ReduceOp::Avg;
  if (!reduces(reduced_as(request.dtype)) || (c10::isComplexType(request.dtype) && !adds)) {
    return fmt::format("NCCL has no {} of {}", comm::name_of(request.op), c10::toString(request.dtype));
  }
  return {};
}

}  // namespace

Transport::Transport(ProcessGroup::Impl& group, c10::Device device, Engine engine)
    : foreign::Transport(group, {}), device_(device), engine_(std::move(engine)) {}

Transport::~Transport() {
  if (!backend_) return;
  {
    std::unique_lock lock(mutex_);
    // Closing the backend would end them. If they can no longer complete, the watcher aborts them.
    while (!aborted_ && reached_ && !reached_()) changed_.wait_for(lock, kPollInterval);
    ends_ = true;
  }
  changed_.notify_all();
  watcher_.join();
  if (group_.failed.load()) abort();
  if (aborted_) {
    // The threads of the backend may need some time to end.
    base::run_aside([backend = std::move(backend_)]() mutable { backend.reset(); });
    return;
  }
  try {
    engine_.close(*backend_);
  } catch (const std::exception& error) {
    base::log_debug("NCCL cannot be closed: {}", error.what());
  }
  backend_.reset();
}

bool Transport::averages(c10::ScalarType dtype, c10::Device) const {
  return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
}

bool Transport::carries(c10::Device device) const {
  return device.type() == device_.type() && (!device_.has_index() || device.index() == device_.index());
}

// ---- Calls

std::shared_ptr<Work::State> Transport::start(comm::Request&& request) {
  if (const auto why = obstacle(request); !why.empty()) {
    throw UsageError(
        base::compose({.what = fmt::format("{} cannot be done", comm::describe(request)),
                       .where = fmt::format("rank {}/{}, {}", group_.rank, group_.world_size, group_.name),
                       .evidence = why,
                       .hint = "use a copy on the CPU"}));
  }
  return foreign::Transport::start(std::move(request));
}

c10::ScalarType Transport::wire_dtype(const comm::Request& request) const {
  return comm::pattern_of(request.kind).reduces ? reduced_as(request.dtype) : at::kByte;
}

void Transport::begin(foreign::Started& call) {
  if (!backend_) connect();
  if (call.request.kind == Kind::Barrier && device_.has_index()) {
    c10d::BarrierOptions options;
    options.device_ids = {device_.index()};
    call.work = backend_->barrier(options);
  } else {
    foreign::Transport::begin(call);
  }
  {
    const std::lock_guard lock(mutex_);
    ++under_way_;
  }
  changed_.notify_all();
}

void Transport::wait(foreign::Started& call) {
  try {
    // With a timeout, it would block until the device has executed the call.
    call.work->wait();
  } catch (...) {
    note_wait({});
    throw;
  }
  note_wait(engine_.mark());
}

void Transport::note_wait(std::function<bool()> reached) {
  const std::lock_guard lock(mutex_);
  --under_way_;
  if (reached) reached_ = std::move(reached);
}

// ---- Failures

void Transport::connect() {
  auto backend = engine_.connect();
  const std::lock_guard lock(mutex_);
  watcher_ = std::thread([this] { watch(); });
  backend_ = std::move(backend);
}

bool Transport::is_idle() {
  if (under_way_ > 0) return false;
  if (reached_ && reached_()) reached_ = {};
  return !reached_;
}

void Transport::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_ && !aborted_) {
    if (is_idle()) {
      changed_.wait(lock);
      continue;
    }
    changed_.wait_for(lock, kCheckInterval);
    if (ends_ || is_idle()) continue;
    lock.unlock();
    if (comm::is_hopeless(group_)) give_up();
    lock.lock();
  }
}

// Other threads may be using the group, so the host's transport is not touched: it notices such ranks itself.
void Transport::give_up() noexcept {
  try {
    try {
      throw std::runtime_error("calls in progress were aborted");
    } catch (...) {
      comm::throw_diagnosis(group_, "communication between CUDA devices", 0);
    }
  } catch (...) {
    try {
      comm::throw_failure(group_);
    } catch (const std::exception& error) {
      base::log_debug("NCCL is aborted: {}", error.what());
    }
  }
  abort();
}

void Transport::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (!backend_ || std::exchange(aborted_, true)) return;
  base::run_aside([backend = backend_, abort = engine_.abort] { abort(*backend); });
  changed_.notify_all();
}

void Transport::fail(const Error&) noexcept { abort(); }

}  // namespace lockstep::nccl
