#include "comm/diagnose.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <stdexcept>
#include <thread>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/hints.h"
#include "base/log.h"
#include "comm/failure.h"
#include "comm/link.h"
#include "comm/purpose.h"
#include "compat/message_of.h"

namespace lockstep::comm {

namespace {

using namespace std::chrono_literals;

// Time for data to arrive that a rank sent before it ended.
constexpr auto kLastWords = 500ms;
// Time for the end of a process to become known after its connection was closed.
constexpr auto kDeathMoment = 300ms;
constexpr std::chrono::milliseconds kBetweenGlances = 20ms;
// Short, because the process that hosts the store may be the one that is stopped.
constexpr auto kAskStore = 500ms;

constexpr int kNobody = -1;

std::string waiting_key(int rank) { return fmt::format("waiting/{}", rank); }

std::string where(const ProcessGroup::Impl& group, uint64_t number) {
  return fmt::format("rank {}/{}, host {}, {}, {}backend {}", group.rank, group.world_size,
                     group.ranks.at(group.rank).host, group.name,
                     number == 0 ? "" : fmt::format("collective #{}, ", number), group.backend);
}

bool mentions(const std::string& message, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return message.find(word) != std::string::npos; });
}

// The calls that ranks have published under "waiting/", by rank; nullopt if the store does not answer.
using WaitingCalls = std::map<int, std::string>;
std::optional<WaitingCalls> read_waiting_calls(const ProcessGroup::Impl& group) {
  try {
    const auto store = group.store->until(base::Deadline::in(kAskStore));
    WaitingCalls waiting;
    for (int rank = 0; rank < group.world_size; ++rank) {
      if (auto call = store->look(waiting_key(rank))) waiting.emplace(rank, std::move(*call));
    }
    return waiting;
  } catch (const Error& error) {
    base::log_debug("cannot read from the store which ranks are waiting: {}", error.what());
    return std::nullopt;
  }
}

std::string list_ranks(const ProcessGroup::Impl& group, const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    if (!text.empty()) text += ", ";
    text += group.ranks.at(rank).describe();
  }
  return text;
}

// The ranks that delay a call, and a description of what they are doing.
struct Whereabouts {
  std::string text;
  std::vector<int> culprits;
};

Whereabouts find_late(const ProcessGroup::Impl& group, const std::string& call) {
  const auto stopped = group.watch ? group.watch->stopped() : std::vector<int>{};
  if (!stopped.empty()) return {fmt::format("; stopped: {}", list_ranks(group, stopped)), stopped};
  const auto waiting = read_waiting_calls(group);
  if (!waiting) {
    return {fmt::format("; {}, which hosts the store, does not answer", group.ranks.at(0).describe()), {0}};
  }
  std::vector<int> absent;
  std::string elsewhere;
  for (int rank = 0; rank < group.world_size; ++rank) {
    if (rank == group.rank) continue;
    const auto found = waiting->find(rank);
    if (found == waiting->end()) {
      absent.push_back(rank);
    } else if (found->second != call) {
      elsewhere += fmt::format("; {} was waiting in {}", group.ranks.at(rank).describe(), found->second);
    }
  }
  std::string text;
  if (!absent.empty()) text = fmt::format("; not waiting in any collective: {}", list_ranks(group, absent));
  return {text + elsewhere, absent};
}

// The first one caused the end of the others, as far as is known.
std::vector<int> find_ended(const ProcessGroup::Impl& group, std::chrono::milliseconds moment) {
  auto ranks = ended_ranks(group, moment);
  if (ranks.empty()) return ranks;
  const auto blamed = group.store->blamed();
  if (!blamed || *blamed == group.rank || *blamed >= group.world_size) return ranks;
  std::erase(ranks, *blamed);
  ranks.insert(ranks.begin(), *blamed);
  return ranks;
}

// False if it deregistered before it ended, or if the store does not know.
bool was_lost(const ProcessGroup::Impl& group, int rank) {
  const auto lost = group.store->ended(store::Ending::Lost);
  return std::any_of(lost.begin(), lost.end(), [&](const auto& each) { return each.rank == rank; });
}

// The error with which another rank ended the group, unless a rank was lost before.
std::optional<store::Failure> find_failure(const ProcessGroup::Impl& group) {
  auto failure = group.store->failure();
  if (!failure || failure->rank == group.rank) return std::nullopt;
  const auto lost = group.store->ended(store::Ending::Lost);
  if (!lost.empty() && lost.front().since < failure->since) return std::nullopt;
  return failure;
}

}  // namespace

std::string numbered(uint64_t number, const std::string& call) {
  return number == 0 ? call : fmt::format("#{} {}", number, call);
}

MismatchError mismatch_error(const ProcessGroup::Impl& group, const Disagreement& disagreement) {
  return MismatchError(Purpose::before(base::compose(
      {.what = "the ranks do not make the same call",
       .where = where(group, disagreement.number),
       .evidence = fmt::format("this rank is in {}, {} in {}", disagreement.here,
                               group.ranks.at(disagreement.rank).describe(), disagreement.there),
       .hint = base::kSameCalls})));
}

void throw_mismatch(ProcessGroup::Impl& group, const Disagreement& disagreement) {
  const auto error = mismatch_error(group, disagreement);
  end_group(group, error);
  throw error;
}

bool is_hopeless(const ProcessGroup::Impl& group) {
  if (group.failed.load(std::memory_order_acquire)) return true;
  const auto lost = group.store->ended(store::Ending::Lost);
  if (!lost.empty() && base::Deadline::Clock::now() - lost.front().since >= kLastWords) return true;
  const auto failure = group.store->failure();
  return failure && failure->rank != group.rank;
}

std::vector<int> ended_ranks(const ProcessGroup::Impl& group, std::chrono::milliseconds moment) {
  for (const auto deadline = base::Deadline::in(moment);;) {
    std::vector<int> ranks;
    for (const auto& lost : group.store->ended(store::Ending::Lost)) ranks.push_back(lost.rank);
    for (const auto& left : group.store->ended(store::Ending::Left)) ranks.push_back(left.rank);
    if (!ranks.empty()) return ranks;
    // Last, because processes are seen to end in no particular order. LibTorch's stores do not report ranks
    // that end.
    if (deadline.expired()) return group.watch ? group.watch->gone(0ms) : ranks;
    std::this_thread::sleep_for(std::min(deadline.remaining(), kBetweenGlances));
  }
}

void report_waiting(ProcessGroup::Impl& group, const std::string& call) {
  try {
    group.store->until(base::Deadline::in(kAskStore))->write(waiting_key(group.rank), call);
  } catch (const std::exception& error) {
    base::log_debug("cannot publish that this rank is waiting: {}", error.what());
  }
}

bool are_waiting(const ProcessGroup::Impl& group, const std::vector<int>& ranks) {
  if (ranks.empty()) return false;
  const auto waiting = read_waiting_calls(group);
  return waiting &&
         std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return waiting->contains(rank); });
}

void throw_diagnosis(ProcessGroup::Impl& group, const std::string& call, uint64_t number) {
  std::string message = base::kNoMessage;
  auto timeout = group.timeout;
  int peer = kNobody;  // at the other end of the connection that failed
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const Disagreement& disagreement) {
    throw_mismatch(group, disagreement);
  } catch (const CallTimeout& error) {
    message = error.what();
    timeout = error.timeout;
  } catch (const LinkError& error) {
    message = error.what();
    peer = error.peer;
  } catch (const std::exception& error) {
    message = compat::message_of(error);
  } catch (...) {
  }
  refuse_if_failed(group);  // if so, the wait was given up because of that failure

  base::ErrorText text{.what = fmt::format("{} failed", call), .where = where(group, number)};
  std::string kind = "Error";
  std::vector<int> culprits;
  // A connection whose other end no longer answers has "timed out", too, but not the call.
  const bool closed = mentions(message, {"Connection closed by peer", "Connection reset", "Broken pipe",
                                         "Socket closed", "Connection timed out"});
  const bool timed_out = !closed && mentions(message, {"Timed out", "timed out", "timeout"});
  auto ended = find_ended(group, closed ? kDeathMoment : 0ms);
  // A rank that waited for the stopped rank as long as this one may have ended by now.
  if (timed_out && group.watch && !group.watch->stopped().empty()) ended.clear();
  if (const auto failure = find_failure(group)) {
    const auto theirs = read_failure(*failure);
    kind = theirs.kind;
    culprits = theirs.culprits;
    std::erase_if(culprits, [&](int rank) { return rank < 0 || rank >= group.world_size; });
    text.what = fmt::format("{} failed", group.ranks.at(failure->rank).describe());
    text.evidence = fmt::format("its error: {}", theirs.message);
  } else if (!ended.empty()) {
    kind = "PeerLostError";
    culprits = {ended.front()};
    group.store->blame(ended.front());
    text.evidence =
        fmt::format("{} has ended; the backend says: {}", group.ranks.at(ended.front()).describe(), message);
    text.hint = was_lost(group, ended.front()) ? base::kItEndedFirst : base::kItEndedFirstOrMadeFewerSteps;
  } else if (timed_out) {
    kind = "TimeoutError";
    const auto late = find_late(group, numbered(number, call));
    culprits = late.culprits;
    text.evidence = fmt::format("Timed out: no answer within {:.1f} s{}; the backend says: {}",
                                timeout.count() / 1000.0, late.text, message);
    text.hint = base::kLate;
  } else if (closed && peer != kNobody) {
    // A rank that hangs up because of an error publishes that at once. So this one has ended or left.
    kind = "PeerLostError";
    culprits = {peer};
    text.evidence = fmt::format("{} closed its connection; the backend says: {}",
                                group.ranks.at(peer).describe(), message);
    text.hint = base::kItEndedFirstOrMadeFewerSteps;
  } else if (closed) {
    kind = "PeerLostError";
    text.evidence = fmt::format("a peer closed its connection{}; the backend says: {}",
                                find_late(group, numbered(number, call)).text, message);
    text.hint = "look at the output of the other ranks: one of them ended first";
  } else {
    text.evidence = message;
  }
  // Every rank detects an ended or a silent rank itself. Any other error may be known only here.
  if (kind == "Error") publish_failure(group, Error(base::compose(text)));
  base::throw_kind(kind, base::compose(text), culprits);
}

}  // namespace lockstep::comm
