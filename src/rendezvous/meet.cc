#include "rendezvous/meet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/hints.h"
#include "base/host.h"
#include "base/log.h"
#include "base/rank_list.h"

namespace lockstep::rendezvous {

namespace {

using namespace std::chrono_literals;

// Polls, with increasing pauses, because several conditions are waited for at once. Returns whether `done`
// became true.
bool poll_until(base::Deadline deadline, const std::function<bool()>& done) {
  auto pause = 1ms;
  for (;;) {
    if (done()) return true;
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::min(std::chrono::milliseconds(pause), deadline.remaining()));
    pause = std::min(pause * 2, 32ms);
  }
}

std::string claim_key(int rank) { return fmt::format("claim/{}", rank); }
std::string said_key(int rank) { return fmt::format("said/{}", rank); }
constexpr const char* kVerdictKey = "verdict";

// Counts the ranks that take part; give_up() counts those that have given up.
void enter(KeyStore& store) { store.add("here", 1); }

// Ends the meeting on all ranks with the same error. Rank 0, whose process may host the store, waits a moment
// until all ranks have read it that have arrived; after a mismatch, also those that are still on their way.
[[noreturn]] void give_up(KeyStore& meeting, int rank, int world_size, const Error& why) {
  try {
    const auto deadline = base::Deadline::in(2s);
    const auto store = meeting.until(deadline);  // the deadline of the meeting may have passed
    if (!store->check({kVerdictKey})) {
      store->write(kVerdictKey,
                   fmt::format("{}\n{}\n{}", why.kind(), fmt::join(why.culprits(), " "), why.what()));
    }
    store->add("gave_up", 1);
    const bool all_come = dynamic_cast<const MismatchError*>(&why) != nullptr;
    if (rank == 0) {
      poll_until(deadline,
                 [&] { return store->add("gave_up", 0) >= (all_come ? world_size : store->add("here", 0)); });
    }
  } catch (const Error& error) {
    base::log_debug("cannot notify the other ranks: {}", error.what());
  }
  base::throw_kind(why.kind(), why.what(), why.culprits());
}

void hear_verdict(KeyStore& store) {
  const auto verdict = store.look(kVerdictKey);
  if (!verdict) return;
  std::istringstream lines(*verdict);
  std::string kind, ranks, message;
  std::getline(lines, kind);
  std::getline(lines, ranks);
  std::getline(lines, message, '\0');
  std::vector<int> culprits;
  std::istringstream numbers(ranks);
  for (int rank = 0; numbers >> rank;) culprits.push_back(rank);
  base::throw_kind(kind, message, culprits);
}

void claim(KeyStore& store, const RankFacts& mine) {
  if (store.add(claim_key(mine.rank), 1) == 1) return;
  std::string first = "another process";
  poll_until(base::Deadline::in(2s), [&] {
    const auto text = store.look(said_key(mine.rank));
    if (text) first = decode_facts(*text).describe();
    return text.has_value();
  });
  give_up(store, mine.rank, mine.world_size,
          MismatchError(base::compose(
              {.what = fmt::format("two processes claim to be rank {} of {}", mine.rank, mine.world_size),
               .evidence = fmt::format("{} arrived first, then {}", first, mine.describe()),
               .hint = "give each process its own RANK; two jobs need different MASTER_PORTs; the file of a "
                       "file:// meeting point must be new for each job"})));
}

void check_world(const RankFacts& mine, const RankFacts& other) {
  if (other.world_size == mine.world_size) return;
  throw MismatchError(
      base::compose({.what = "the ranks disagree on the world size",
                     .evidence = fmt::format("{} has {}, {} has {}", mine.describe(), mine.world_size,
                                             other.describe(), other.world_size),
                     .hint = "give every process the same WORLD_SIZE"}));
}

void check_backends(const RankFacts& mine, const RankFacts& other) {
  if (other.backend == mine.backend) return;
  throw MismatchError(
      base::compose({.what = "the ranks request different backends",
                     .evidence = fmt::format("{} requests \"{}\", {} requests \"{}\"", mine.describe(),
                                             mine.backend, other.describe(), other.backend),
                     .hint = "request the same backend in every process"}));
}

void check_links(const RankFacts& mine, const RankFacts& other) {
  if (other.link == mine.link) return;
  throw MismatchError(
      base::compose({.what = "the ranks request different links between machines",
                     .evidence = fmt::format("{} requests \"{}\", {} requests \"{}\"", mine.describe(),
                                             mine.link, other.describe(), other.link),
                     .hint = "give every process the same LOCKSTEP_LINK"}));
}

[[noreturn]] void throw_lost(int rank, int world_size, int other) {
  throw PeerLostError(
      base::compose({.what = fmt::format("rank {} ended before all ranks had met", other),
                     .where = fmt::format("rank {}/{}, host {}", rank, world_size, base::host_name()),
                     .evidence = fmt::format("missing: rank {}", other),
                     .hint = base::kItEndedFirst}),
      {other});
}

std::vector<std::string> collect(KeyStore& store, int rank, int world_size, base::Deadline deadline,
                                 const Heard& heard) {
  std::vector<std::optional<std::string>> seen(world_size);
  const auto look_for = [&](int other) {
    if (seen[other]) return true;
    seen[other] = store.look(said_key(other));
    if (seen[other] && heard) heard(other, *seen[other]);
    return seen[other].has_value();
  };
  std::vector<int> missing;
  try {
    int next = 0;
    const bool complete = poll_until(deadline, [&] {
      // Read first, so that everything that a lost rank wrote is visible below.
      const auto lost = store.ended(store::Ending::Lost);
      while (next < world_size && look_for(next)) ++next;
      // Also if all have said something: one of them may have given up since, and does not come any more.
      hear_verdict(store);
      if (next == world_size) return true;
      for (const auto& ended : lost) {
        if (!look_for(ended.rank)) throw_lost(rank, world_size, ended.rank);
      }
      return false;
    });
    for (int other = 0; other < world_size && !complete; ++other) {
      if (!look_for(other)) missing.push_back(other);
    }
    if (!missing.empty()) {
      throw TimeoutError(
          base::compose({.what = fmt::format("not all ranks arrived within {:.1f} s",
                                             deadline.budget().count() / 1000.0),
                         .where = fmt::format("rank {}/{}, host {}", rank, world_size, base::host_name()),
                         .evidence = fmt::format("missing: rank {} ({} of {} have arrived)",
                                                 base::describe_ranks(missing), world_size - missing.size(),
                                                 world_size),
                         .hint = "look at the output of the missing ranks; a slow start needs a longer "
                                 "timeout"}),
          missing);
    }
  } catch (const Error& error) {
    give_up(store, rank, world_size, error);
  }
  std::vector<std::string> all;
  for (auto& said : seen) all.push_back(std::move(*said));
  return all;
}

}  // namespace

std::vector<std::string> exchange(KeyStore& store, int rank, int world_size, const std::string& said,
                                  base::Deadline deadline, const Heard& heard) {
  const auto meeting = store.until(deadline);
  enter(*meeting);
  meeting->write(said_key(rank), said);
  return collect(*meeting, rank, world_size, deadline, heard);
}

std::vector<RankFacts> meet(KeyStore& store, const RankFacts& mine, base::Deadline deadline) {
  const auto meeting = store.until(deadline);
  enter(*meeting);
  claim(*meeting, mine);
  meeting->write(said_key(mine.rank), encode_facts(mine));
  const auto check = [&](int, const std::string& text) {
    const auto other = decode_facts(text);
    check_world(mine, other);
    check_backends(mine, other);
    check_links(mine, other);
  };
  const auto said = collect(*meeting, mine.rank, mine.world_size, deadline, check);
  std::vector<RankFacts> ranks;
  for (const auto& text : said) ranks.push_back(decode_facts(text));
  return ranks;
}

void leave(KeyStore& store, int rank, int world_size, base::Deadline deadline) {
  const auto meeting = store.until(deadline);
  const auto left = meeting->add("left", 1);
  if (rank != 0 || left == world_size) return;
  // A lost rank will not arrive, and does not need the store.
  poll_until(deadline, [&] {
    const auto lost = static_cast<int64_t>(meeting->ended(store::Ending::Lost).size());
    return meeting->add("left", 0) + lost >= world_size;
  });
}

}  // namespace lockstep::rendezvous
