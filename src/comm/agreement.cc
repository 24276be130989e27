#include "comm/agreement.h"

#include <algorithm>
#include <fmt/format.h>

#include "base/env.h"
#include "comm/diagnose.h"
#include "comm/wire_tags.h"

namespace lockstep::comm {

std::unique_ptr<Agreement> Agreement::among(const std::vector<int>& ranks, int rank) {
  if (ranks.size() < 2 || !base::env_flag("LOCKSTEP_CHECK_CALLS", true)) return {};
  const auto mine = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  return std::unique_ptr<Agreement>(
      new Agreement(ranks.at((mine + 1) % ranks.size()), ranks.at((mine + ranks.size() - 1) % ranks.size())));
}

void Agreement::tell(Link& link, const Fingerprint& mine) {
  const auto exchange = std::make_shared<Exchange>();
  exchange->mine = mine;
  exchange->hearing = receive_fingerprint(link, previous_, kFingerprintTag, {exchange, &exchange->heard});
  exchange->telling = send_fingerprint(link, next_, kFingerprintTag, mine, Then::More);
  const std::lock_guard lock(mutex_);
  under_way_.push_back(exchange);
}

void Agreement::verify(uint64_t number, const std::function<bool()>& hopeless) {
  std::vector<ExchangePtr> due;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& exchange : under_way_) {
      if (exchange->mine.number <= number) due.push_back(exchange);
    }
  }
  for (const auto& exchange : due) settle(*exchange, hopeless);
  const std::lock_guard lock(mutex_);
  while (!under_way_.empty() && under_way_.front()->settled) under_way_.pop_front();
}

void Agreement::settle(Exchange& exchange, const std::function<bool()>& hopeless) const {
  const std::lock_guard lock(exchange.settling);
  if (exchange.settled) return;
  // Waited for only once: an earlier attempt may have been given up between the two waits.
  if (exchange.hearing) exchange.hearing->wait(hopeless);
  exchange.hearing.reset();
  const auto& theirs = exchange.heard;
  if (theirs != exchange.mine) {
    const auto text = [&](const Fingerprint& call) {
      return theirs.number == exchange.mine.number ? describe(call)
                                                   : fmt::format("#{} {}", call.number, describe(call));
    };
    throw Disagreement{previous_, exchange.mine.number, text(exchange.mine), text(theirs)};
  }
  exchange.telling->wait(hopeless);
  exchange.settled = true;
}

}  // namespace lockstep::comm
