#include "comm/failure.h"

#include <fmt/format.h>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include <c10/util/Exception.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/log.h"
#include "base/note.h"
#include "comm/rendezvous.h"

namespace lockstep::comm {

namespace {

using namespace std::chrono_literals;

std::string waiting_key(int rank) { return fmt::format("waiting/{}", rank); }

// Why a rank has ended the group: kind, line break, text.
std::string failure_key(int rank) { return fmt::format("failed/{}", rank); }

std::string text_of(const Call& call) { return fmt::format("#{} {}", call.number, call.what); }

// c10d's exceptions carry a C++ stack trace behind their first lines; nobody who reads the error wants it.
std::string message_of(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error))
    return torch_error->what_without_backtrace();
  return error.what();
}

bool mentions(const std::string& message, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return message.find(word) != std::string::npos; });
}

// What each rank has left under its key; nothing when the store does not answer. The process that hosts
// the store may be the one that hangs, and a request to it cannot be given up; so the asking is left to a
// thread that nobody waits for.
using Words = std::optional<std::map<int, std::string>>;
Words ask_store(const ProcessGroup::Impl& group, std::string (*key)(int rank)) {
  auto promise = std::make_shared<std::promise<Words>>();
  auto answer = promise->get_future();
  std::thread([promise, key, store = group.store, world_size = group.world_size] {
    Words words(std::in_place);
    try {
      for (int rank = 0; rank < world_size; ++rank) {
        if (!store->check({key(rank)})) continue;
        const auto value = store->get(key(rank));
        words->emplace(rank, std::string(value.begin(), value.end()));
      }
    } catch (const std::exception& error) {
      words.reset();
      base::log_debug("the store does not answer: {}", error.what());
    }
    promise->set_value(std::move(words));
  }).detach();
  if (answer.wait_for(2s) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

std::string list_ranks(const ProcessGroup::Impl& group, const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    if (!text.empty()) text += ", ";
    text += group.ranks.at(rank).describe();
  }
  return text;
}

// "; rank 1 (…) was waiting in #7 barrier": where the others are, as far as they have said.
std::string whereabouts(const ProcessGroup::Impl& group, const Call& call) {
  const auto words = ask_store(group, waiting_key);
  if (!words) return "; where the others are is not known, since the store on rank 0 does not answer";
  std::vector<int> absent;
  std::string elsewhere;
  for (int rank = 0; rank < group.world_size; ++rank) {
    if (rank == group.rank) continue;
    const auto found = words->find(rank);
    if (found == words->end()) {
      absent.push_back(rank);
    } else if (found->second != text_of(call)) {
      elsewhere += fmt::format("; {} was waiting in {}", group.ranks.at(rank).describe(), found->second);
    }
  }
  std::string text;
  if (!absent.empty()) text = fmt::format("; not waiting in any collective: {}", list_ranks(group, absent));
  return text + elsewhere;
}

// The first error is the one that counts: here, and for the launcher.
void remember(ProcessGroup::Impl& group, const std::string& kind, const std::string& message) {
  const std::lock_guard lock(group.poison_mutex);
  if (group.poison) return;
  group.poison = {kind, message};
  base::write_note({kind, message});
}

}  // namespace

void refuse_if_poisoned(ProcessGroup::Impl& group) {
  const std::lock_guard lock(group.poison_mutex);
  if (group.poison) base::throw_kind(group.poison->first, group.poison->second);
}

void poison(ProcessGroup::Impl& group, const Error& why) {
  const std::string kind(why.kind());
  remember(group, kind, why.what());
  if (group.native != nullptr) {
    group.native->fail(kind, why.what());
    return;
  }
  if (!group.c10d || group.world_size == 1) return;
  const auto words = kind + '\n' + why.what();
  try {
    group.store->set(failure_key(group.rank), std::vector<uint8_t>(words.begin(), words.end()));
  } catch (const std::exception& error) {
    base::log_debug("cannot leave word of an error: {}", error.what());
  }
  // Closes this rank's connections, which is all that wakes the others. That waits for calls under way, so it
  // is left to a thread.
  std::thread([c10d = std::exchange(group.c10d, {})]() mutable { c10d.reset(); }).detach();
}

void report_waiting(ProcessGroup::Impl& group, const Call& call) {
  try {
    const std::string text = text_of(call);
    group.store->set(waiting_key(group.rank), std::vector<uint8_t>(text.begin(), text.end()));
  } catch (const std::exception& error) {
    base::log_debug("cannot leave word that this rank waits: {}", error.what());
  }
}

void throw_failure(ProcessGroup::Impl& group, const Call& call) {
  std::string message = "an unknown exception";
  try {
    throw;
  } catch (const UsageError&) {
    throw;  // nothing has begun
  } catch (const Error& error) {
    // A backend of our own has said all there is to say.
    remember(group, std::string(error.kind()), error.what());
    throw;
  } catch (const std::exception& error) {
    message = message_of(error);
  } catch (...) {
  }

  base::ErrorText text{.what = fmt::format("{} failed", call.what),
                       .where = fmt::format("rank {}/{}, host {}, {}, collective #{}, backend {}", group.rank,
                                            group.world_size, group.ranks.at(group.rank).host, group.name,
                                            call.number, group.backend)};
  std::string kind = "Error";
  if (const auto failed = ask_store(group, failure_key); failed && !failed->empty()) {
    const auto& [rank, words] = *failed->begin();
    const auto end_of_kind = words.find('\n');
    kind = words.substr(0, end_of_kind);
    text.what = fmt::format("{} failed", group.ranks.at(rank).describe());
    text.evidence = fmt::format("it said: {}", words.substr(end_of_kind + 1));
    const std::string said = base::compose(text);
    remember(group, kind, said);
    base::throw_kind(kind, said);
  }
  const auto gone = group.watch ? group.watch->gone() : std::vector<int>{};
  if (!gone.empty()) {
    kind = "PeerLostError";
    text.evidence = fmt::format("{} has ended; the backend says: {}", list_ranks(group, gone), message);
    text.hint = "look at the output of that rank: it ended first";
  } else if (mentions(message, {"Timed out", "timed out", "timeout"})) {
    kind = "TimeoutError";
    text.evidence = fmt::format("no answer within {:.1f} s{}; the backend says: {}",
                                group.timeout.count() / 1000.0, whereabouts(group, call), message);
    text.hint =
        "look at what the absent ranks are doing; all ranks must make the same calls in the same order. A "
        "slow "
        "but healthy job needs a longer InitOptions::timeout";
  } else if (mentions(message,
                      {"Connection closed by peer", "Connection reset", "Broken pipe", "Socket closed"})) {
    kind = "PeerLostError";
    text.evidence = fmt::format("a peer closed its connection{}; the backend says: {}",
                                whereabouts(group, call), message);
    text.hint = "look at the output of the other ranks: one of them ended first";
  } else {
    text.evidence = message;
  }
  const std::string composed = base::compose(text);
  remember(group, kind, composed);
  base::throw_kind(kind, composed);
}

}  // namespace lockstep::comm
