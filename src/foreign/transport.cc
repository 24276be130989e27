#include "foreign/transport.h"

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include <ATen/ATen.h>

#include "base/aside.h"
#include "comm/diagnose.h"
#include "comm/failure.h"

namespace lockstep::foreign {

namespace {

using namespace std::chrono_literals;
using base::Deadline;
using comm::Kind;

// If a call takes longer than this, the other ranks are checked.
constexpr auto kUsualWait = 400ms;
constexpr auto kCheckInterval = 100ms;
constexpr auto kPollInterval = 2ms;

}  // namespace

struct Transport::Call final : Started {
  Call(Transport& transport, comm::Request&& described, uint64_t call_number)
      : Started(transport.group_, std::move(described), call_number, kUsualWait), transport_(transport) {}

  void complete() override {
    if (!work) return;
    try {
      if (!work->isCompleted()) comm::refuse_if_failed(facts);
      transport_.wait(*this);
    } catch (...) {
      comm::throw_diagnosis(facts, text(), number);
    }
    // A device may only have queued the call.
    if (work->isCompleted()) note_end();
    work.reset();
    if (bring_home) bring_home();
  }

  bool is_done() override {
    if (!work) return true;
    if (work->isCompleted()) {
      note_end();
      return true;
    }
    return usual.expired() && comm::is_hopeless(facts);
  }

  std::optional<Clock::time_point> ended() const override { return ended_; }

 private:
  // The backend does not record when the call ended, so this is the time at which its end was first observed.
  void note_end() {
    if (!ended_) ended_ = Clock::now();
  }

  Transport& transport_;
  std::optional<Clock::time_point> ended_;
};

Transport::Transport(ProcessGroup::Impl& group, c10::intrusive_ptr<c10d_backend> backend)
    : group_(group), backend_(std::move(backend)) {}

// A backend's destructor may wait for its calls, which may wait for ranks that have ended.
Transport::~Transport() {
  if (!backend_ || !group_.failed.load()) return;
  base::run_aside([backend = std::move(backend_)]() mutable { backend.reset(); });
}

void Transport::run(comm::Request& request) { start(std::move(request))->complete(); }

std::shared_ptr<Work::State> Transport::start(comm::Request&& request) {
  comm::refuse_if_failed(group_);
  const auto number = comm::is_message(request) ? 0 : ++calls_;
  auto call = std::make_shared<Call>(*this, std::move(request), number);
  try {
    begin(*call);
  } catch (...) {
    comm::throw_diagnosis(group_, call->text(), number);
  }
  return call;
}

void Transport::fail(const Error&) noexcept {
  if (!backend_) return;
  interrupt();
  base::run_aside([backend = std::exchange(backend_, {})]() mutable { backend.reset(); });
}

void Transport::begin(Started& call) {
  auto& request = call.request;
  const auto dtype = wire_dtype(request);
  auto give = given_tensors(request, dtype);
  auto take = taken_tensors(request, dtype);
  const bool divides = request.op == ReduceOp::Avg && !averages(request.dtype, request.device);
  const auto op = to_c10d(divides ? ReduceOp::Sum : request.op);
  const auto divide_by_world = [world_size = group_.world_size](const at::Tensor& sum) {
    return [sum, world_size] { sum.div_(world_size); };
  };
  switch (request.kind) {
    case Kind::AllReduce:
    case Kind::Reduce:
      call.work = request.kind == Kind::Reduce ? reduce(*backend_, give[0], op, request.root)
                                               : all_reduce(*backend_, give[0], op);
      if (divides) call.bring_home = divide_by_world(give[0]);
      break;
    case Kind::ReduceScatter: {
      std::vector<Tensors> inputs{give};
      c10d::ReduceScatterOptions options;
      options.reduceOp = op;
      call.work = backend_->reduce_scatter(take, inputs, options);
      if (divides) call.bring_home = divide_by_world(take[0]);
      break;
    }
    case Kind::Send:
      call.work = backend_->send(give, request.peer, request.tag);
      break;
    case Kind::Receive:
      call.work = backend_->recv(take, request.peer, request.tag);
      break;
    default:
      call.work = move(*backend_, request, give, take);
  }
}

void Transport::wait(Started& call) {
  if (ends_soon(call)) return;
  auto lookout = lookout_for(call);
  wait_and_watch(call, lookout);
}

bool Transport::ends_soon(Started& call) {
  try {
    call.work->wait(kUsualWait);
    return true;
  } catch (const std::exception&) {
    return false;  // slow or failed, or done by now in spite of the exception
  }
}

void Transport::wait_and_watch(Started& call, comm::Lookout& lookout) {
  auto look = Deadline::in(0ms);
  // Polling costs less than waits that end with an exception.
  while (!call.work->isCompleted()) {
    if (look.expired()) {
      if (lookout.hopeless()) {
        lookout.report();
        throw std::runtime_error("the wait was given up");
      }
      look = Deadline::in(kCheckInterval);
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  call.work->wait();
}

}  // namespace lockstep::foreign
