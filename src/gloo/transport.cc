#include "gloo/transport.h"

#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "comm/announcement.h"
#include "comm/diagnose.h"
#include "comm/fingerprint.h"
#include "comm/wire_tags.h"
#include "gloo/gaps.h"
#include "gloo/make_gloo.h"
#include "gloo/no_sigpipe.h"

namespace lockstep::gloo {

namespace {

using comm::Kind;
using foreign::given_tensors;
using foreign::Started;
using foreign::taken_tensors;
using foreign::Tensors;

// Gloo rejects empty tensors, but the call must still be made: otherwise this rank's next call would be
// matched with the other ranks' current one. So zeros are sent instead.
at::Tensor never_empty(const at::Tensor& tensor) {
  return tensor.numel() != 0 ? tensor : at::zeros({1}, tensor.options());
}

// As bytes, so that every dtype can be sent.
Tensors wires_of(const Tensors& tensors) {
  if (!tensors.empty() && tensors.front().numel() == 0) {
    return at::zeros({static_cast<int64_t>(tensors.size())}, at::kByte).split(1);  // adjacent, as pieces are
  }
  Tensors wires;
  for (const auto& tensor : tensors) wires.push_back(as_bytes(tensor));
  return wires;
}

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Transport::Transport(ProcessGroup::Impl& group, c10::intrusive_ptr<c10d_backend> gloo)
    : foreign::Transport(group, std::move(gloo)),
      link_(*backend_),
      agreement_(comm::Agreement::among(all_ranks(group.world_size), group.rank)) {}

Transport::~Transport() {
  if (backend_ && group_.failed.load()) interrupt();
}

std::shared_ptr<Work::State> Transport::start(comm::Request&& request) {
  const NoSigpipe quiet;  // Gloo writes messages in the caller's thread
  return foreign::Transport::start(std::move(request));
}

void Transport::begin(Started& call) {
  if (comm::is_message(call.request)) {
    begin_message(call);
    return;
  }
  if (agreement_) {
    const auto mine = comm::fingerprint_of(call.request, call.number);
    mark_next_collective(*backend_, comm::digest(mine));
    agreement_->tell(link_, mine);
  }
  switch (call.request.kind) {
    case Kind::AllReduce:
    case Kind::Reduce:
      begin_reduction(call);
      break;
    case Kind::ReduceScatter:
      begin_reduce_scatter(call);
      break;
    default:
      begin_move(call);
  }
}

void Transport::begin_reduction(Started& call) {
  const auto& request = call.request;
  const auto target = given_tensors(request)[0];
  const auto tensor = never_empty(target);
  if (auto wire = reduction_wire(tensor, request.op, group_.world_size)) {
    call.bring_home = std::move(wire->finish);
    call.work = request.kind == Kind::Reduce
                    ? foreign::reduce(*backend_, wire->tensor, wire->op, request.root)
                    : foreign::all_reduce(*backend_, wire->tensor, wire->op);
    return;
  }
  // Every rank receives all parts and reduces them itself.
  const auto all = at::empty({group_.world_size, tensor.numel()}, tensor.options());
  const Tensors parts = all.unbind();
  std::vector<Tensors> outputs{wires_of(parts)};
  auto inputs = wires_of({tensor});
  call.bring_home = [target, parts, op = request.op] {
    if (target.numel() != 0) target.copy_(reduce_locally(parts, op));
  };
  call.work = backend_->allgather(outputs, inputs);
}

// LibTorch 1.x has no reduce-scatter over Gloo, and 2.x has it only for some dtypes. Exchanging the parts and
// reducing this rank's own sends as few bytes, and reduces in rank order.
void Transport::begin_reduce_scatter(Started& call) {
  const auto& request = call.request;
  const auto give = given_tensors(request);
  const auto target = taken_tensors(request)[0];
  const auto received = at::empty({group_.world_size, target.numel()}, target.options()).unbind();
  call.bring_home = [target, received, op = request.op] {
    if (target.numel() != 0) target.copy_(reduce_locally(received, op));
  };
  comm::Request exchange;
  exchange.kind = Kind::AllToAll;
  call.work = foreign::move(*backend_, exchange, wires_of(give), wires_of(received));
}

void Transport::begin_move(Started& call) {
  const auto& request = call.request;
  call.work =
      foreign::move(*backend_, request, wires_of(given_tensors(request)), wires_of(taken_tensors(request)));
}

namespace {

// The state of a message whose two ends are compared.
struct Compared {
  comm::Announcement announcement;
};

}  // namespace

void Transport::begin_message(Started& call) {
  const auto& request = call.request;
  const bool sends = request.kind == Kind::Send;
  auto wires = wires_of(sends ? given_tensors(request) : taken_tensors(request));
  int tag = request.tag;
  if (agreement_) {
    const auto mine = comm::fingerprint_of(request, 0);
    call.compared = std::make_shared<Compared>(Compared{comm::Announcement(link_, mine, request.peer, tag)});
    tag = comm::data_tag(tag, mine);
  }
  call.work = sends ? backend_->send(wires, request.peer, tag) : backend_->recv(wires, request.peer, tag);
}

void Transport::wait(Started& call) {
  if (comm::is_message(call.request)) {
    wait_for_message(call);
  } else {
    wait_for_collective(call);
  }
}

void Transport::wait_for_collective(Started& call) {
  const bool soon = ends_soon(call);
  if (soon && !agreement_) return;
  auto lookout = lookout_for(call);
  const auto agree = [&](const std::function<bool()>& give_up) {
    if (agreement_) agreement_->verify(call.number, give_up);
  };
  if (!soon) {
    try {
      // A call that differs from those of the peers never completes.
      agree([&] { return call.work->isCompleted() || lookout.hopeless(); });
    } catch (const std::exception&) {
      // The error of the call itself is more specific.
    }
    wait_and_watch(call, lookout);
  }
  try {
    agree([&] { return lookout.hopeless(); });
  } catch (const std::exception&) {
    lookout.report();
    throw;
  }
}

void Transport::wait_for_message(Started& call) {
  const auto give_up = [&] { return comm::is_hopeless(group_); };
  if (call.compared) {
    std::static_pointer_cast<Compared>(call.compared)->announcement.verify(give_up);
  }
  interrupter_.wait(call.work, give_up);
}

void Transport::interrupt() noexcept {
  if (agreement_) link_.hang_up();
}

}  // namespace lockstep::gloo
