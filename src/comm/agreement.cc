#include "comm/agreement.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <vector>

#include <ATen/ATen.h>

#include "base/env.h"
#include "base/no_sigpipe.h"
#include "comm/wire_tags.h"
#include "compat/gloo.h"

namespace lockstep::comm {

namespace {

using namespace std::chrono_literals;

// A receive that stands ready takes a fingerprint as soon as it is sent; and the sender, which must not leave
// before it has been taken, need not wait for a neighbour that is this many calls behind.
constexpr int kReadyAhead = 4;

}  // namespace

std::unique_ptr<Agreement> Agreement::over(c10d_backend& backend, int rank, int world_size) {
  if (world_size == 1 || !compat::is_gloo(backend) || !base::env_flag("LOCKSTEP_CHECK_CALLS", true))
    return {};
  std::unique_ptr<Agreement> agreement(
      new Agreement((rank + 1) % world_size, (rank + world_size - 1) % world_size));
  const base::NoSigpipe quiet;
  for (int i = 0; i < kReadyAhead; ++i) agreement->listen(backend);
  return agreement;
}

void Agreement::listen(c10d_backend& backend) {
  auto exchange = std::make_shared<Exchange>();
  exchange->heard = at::empty({sizeof(Fingerprint)}, at::kByte);
  std::vector<at::Tensor> room{exchange->heard};
  exchange->hearing = backend.recv(room, previous_, kFingerprintTag);
  awaited_.push_back(std::move(exchange));
}

void Agreement::tell(c10d_backend& backend, const Fingerprint& mine) {
  compat::mark_next_collective(backend, digest(mine));
  const std::lock_guard lock(mutex_);
  const auto exchange = awaited_.front();
  exchange->mine = mine;
  std::vector<at::Tensor> words{bytes_of(mine)};
  exchange->telling = backend.send(words, next_, kFingerprintTag);
  awaited_.pop_front();
  told_.push_back(exchange);
  listen(backend);
}

void Agreement::verify(uint64_t number, Interrupter& waits, const std::function<bool()>& hopeless) {
  std::vector<ExchangePtr> due;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& exchange : told_) {
      if (exchange->mine.number <= number) due.push_back(exchange);
    }
  }
  for (const auto& exchange : due) settle(*exchange, waits, hopeless);
  const std::lock_guard lock(mutex_);
  while (!told_.empty() && told_.front()->settled) told_.pop_front();
}

void Agreement::settle(Exchange& exchange, Interrupter& waits, const std::function<bool()>& hopeless) const {
  const std::lock_guard lock(exchange.settling);
  if (exchange.settled) return;
  waits.wait(exchange.hearing, hopeless);
  const auto theirs = fingerprint_in(exchange.heard);
  if (theirs != exchange.mine) {
    const auto text = [&](const Fingerprint& call) {
      return theirs.number == exchange.mine.number ? describe(call)
                                                   : fmt::format("#{} {}", call.number, describe(call));
    };
    throw Disagreement{previous_, exchange.mine.number, text(exchange.mine), text(theirs)};
  }
  waits.wait(exchange.telling, hopeless);
  exchange.settled = true;
}

void Agreement::hang_up() noexcept {
  // Gloo has no call for this, but closes everything when a receive is given up.
  const std::lock_guard lock(mutex_);
  for (const auto& exchange : awaited_) {
    try {
      exchange->hearing->wait(1ms);
    } catch (const std::exception&) {
      return;
    }
  }
}

}  // namespace lockstep::comm
