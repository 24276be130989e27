#include "gloo/agreement.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <vector>

#include <ATen/ATen.h>

#include "base/env.h"
#include "comm/diagnose.h"
#include "gloo/make_gloo.h"
#include "gloo/no_sigpipe.h"
#include "gloo/wire_tags.h"

namespace lockstep::gloo {

using namespace std::chrono_literals;

std::unique_ptr<Agreement> Agreement::among(int rank, int world_size) {
  if (world_size == 1 || !base::env_flag("LOCKSTEP_CHECK_CALLS", true)) return {};
  return std::unique_ptr<Agreement>(
      new Agreement((rank + 1) % world_size, (rank + world_size - 1) % world_size));
}

void Agreement::tell(c10d_backend& backend, const Fingerprint& mine) {
  mark_next_collective(backend, digest(mine));
  const auto exchange = std::make_shared<Exchange>();
  exchange->mine = mine;
  exchange->heard = at::empty({sizeof(Fingerprint)}, at::kByte);
  std::vector<at::Tensor> room{exchange->heard}, words{bytes_of(mine)};
  exchange->hearing = backend.recv(room, previous_, kFingerprintTag);
  exchange->telling = backend.send(words, next_, kFingerprintTag);
  const std::lock_guard lock(mutex_);
  under_way_.push_back(exchange);
}

void Agreement::verify(uint64_t number, Interrupter& waits, const std::function<bool()>& hopeless) {
  std::vector<ExchangePtr> due;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& exchange : under_way_) {
      if (exchange->mine.number <= number) due.push_back(exchange);
    }
  }
  for (const auto& exchange : due) settle(*exchange, waits, hopeless);
  const std::lock_guard lock(mutex_);
  while (!under_way_.empty() && under_way_.front()->settled) under_way_.pop_front();
}

void Agreement::settle(Exchange& exchange, Interrupter& waits, const std::function<bool()>& hopeless) const {
  const std::lock_guard lock(exchange.settling);
  if (exchange.settled) return;
  // Waited for only once: an earlier attempt may have been given up between the two waits.
  if (exchange.hearing) waits.wait(exchange.hearing, hopeless);
  exchange.hearing.reset();
  const auto theirs = fingerprint_in(exchange.heard);
  if (theirs != exchange.mine) {
    const auto text = [&](const Fingerprint& call) {
      return theirs.number == exchange.mine.number ? describe(call)
                                                   : fmt::format("#{} {}", call.number, describe(call));
    };
    throw comm::Disagreement{previous_, exchange.mine.number, text(exchange.mine), text(theirs)};
  }
  waits.wait(exchange.telling, hopeless);
  exchange.settled = true;
}

void Agreement::hang_up(c10d_backend& backend) const noexcept {
  // Gloo has no call for this, but when a receive times out, it closes the connections over which it waited.
  const NoSigpipe quiet;
  for (int connection = 0; connection < connections_of(backend); ++connection) {
    try {
      std::vector<at::Tensor> room{at::empty({1}, at::kByte)};
      backend.recv(room, previous_, kUnusedTag - connection)->wait(1ms);
    } catch (const std::exception&) {
    }
  }
}

}  // namespace lockstep::gloo
