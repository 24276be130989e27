#include "comm/rendezvous.h"

#include <fmt/format.h>
#include <functional>
#include <optional>
#include <thread>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/host.h"

namespace lockstep::comm {

namespace {

using namespace std::chrono_literals;

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::optional<std::string> look(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  const auto value = store.get(key);
  return std::string(value.begin(), value.end());
}

// The store's own wait() cannot be given up in LibTorch 1.13: its late answer would be taken for that of the
// next request. So ask again and again, with growing pauses. Returns whether `done` became true.
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

// Everybody who takes part is counted, when they come and when they give up.
void enter(c10d::Store& store) { store.add("here", 1); }

// Ends the meeting for everybody with one verdict. Rank 0, whose process may host the store, waits a moment
// until all that are here have heard it.
[[noreturn]] void give_up(c10d::Store& store, int rank, const std::string& kind, const std::string& message) {
  if (!store.check({kVerdictKey})) store.set(kVerdictKey, bytes(kind + "\n" + message));
  store.add("gave_up", 1);
  if (rank == 0) {
    poll_until(base::Deadline::in(2s), [&] { return store.add("gave_up", 0) >= store.add("here", 0); });
  }
  base::throw_kind(kind, message);
}

void hear_verdict(c10d::Store& store) {
  const auto verdict = look(store, kVerdictKey);
  if (!verdict) return;
  const auto end = verdict->find('\n');
  base::throw_kind(verdict->substr(0, end), verdict->substr(end + 1));
}

// Runs one rank's part of a meeting. What goes wrong in the store itself means that its host is gone.
template <class Part>
auto take_part(int rank, int world_size, Part&& part) {
  try {
    return part();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerLostError(
        base::compose({.what = "the store where the ranks meet is gone",
                       .where = fmt::format("rank {}/{}, host {}", rank, world_size, base::host_name()),
                       .evidence = error.what(),
                       .hint = "look at the output of rank 0, which hosts it"}));
  }
}

void claim(c10d::Store& store, const RankFacts& mine) {
  if (store.add(claim_key(mine.rank), 1) == 1) return;
  std::string first = "another process";
  poll_until(base::Deadline::in(2s), [&] {
    const auto text = look(store, said_key(mine.rank));
    if (text) first = decode_facts(*text).describe();
    return text.has_value();
  });
  give_up(
      store, mine.rank, "MismatchError",
      base::compose(
          {.what = fmt::format("two processes say that they are rank {} of {}", mine.rank, mine.world_size),
           .evidence = fmt::format("{} came first, then {}", first, mine.describe()),
           .hint = "give each process its own RANK; two jobs need different MASTER_PORTs; the file of a "
                   "file:// meeting point must be new for each job"}));
}

void check_world(const RankFacts& mine, const RankFacts& other) {
  if (other.world_size == mine.world_size) return;
  throw MismatchError(
      base::compose({.what = "the ranks do not agree how many they are",
                     .evidence = fmt::format("{} says {}, {} says {}", mine.describe(), mine.world_size,
                                             other.describe(), other.world_size),
                     .hint = "give every process the same WORLD_SIZE"}));
}

void check_backends(const RankFacts& mine, const RankFacts& other) {
  if (other.backend == mine.backend) return;
  throw MismatchError(
      base::compose({.what = "the ranks do not ask for the same backend",
                     .evidence = fmt::format("{} asks for \"{}\", {} for \"{}\"", mine.describe(),
                                             mine.backend, other.describe(), other.backend),
                     .hint = "give every process the same InitOptions::backend"}));
}

std::vector<std::string> collect(c10d::Store& store, int rank, int world_size, base::Deadline deadline,
                                 const Heard& heard) {
  std::vector<std::optional<std::string>> seen(world_size);
  const auto look_for = [&](int other) {
    if (seen[other]) return true;
    seen[other] = look(store, said_key(other));
    if (seen[other] && heard) heard(other, *seen[other]);
    return seen[other].has_value();
  };
  std::vector<int> missing;
  try {
    int next = 0;
    const bool complete = poll_until(deadline, [&] {
      hear_verdict(store);
      while (next < world_size && look_for(next)) ++next;
      return next == world_size;
    });
    for (int other = 0; other < world_size && !complete; ++other) {
      if (!look_for(other)) missing.push_back(other);
    }
    if (!missing.empty()) {
      throw TimeoutError(base::compose(
          {.what = fmt::format("not all ranks arrived within {:.1f} s", deadline.budget().count() / 1000.0),
           .where = fmt::format("rank {}/{}, host {}", rank, world_size, base::host_name()),
           .evidence = fmt::format("missing: rank {} ({} of {} are here)", describe_ranks(missing),
                                   world_size - missing.size(), world_size),
           .hint =
               "look at the output of the missing ranks; a slow start needs a longer InitOptions::timeout"}));
    }
  } catch (const Error& error) {
    give_up(store, rank, std::string(error.kind()), error.what());
  }
  std::vector<std::string> all;
  for (auto& said : seen) all.push_back(std::move(*said));
  return all;
}

}  // namespace

std::string describe_ranks(const std::vector<int>& sorted_ranks) {
  std::string text;
  for (size_t i = 0; i < sorted_ranks.size();) {
    size_t last = i;
    while (last + 1 < sorted_ranks.size() && sorted_ranks[last + 1] == sorted_ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last - i >= 2 ? fmt::format("{}-{}", sorted_ranks[i], sorted_ranks[last])
                          : std::to_string(sorted_ranks[i]);
    i = last - i >= 2 ? last + 1 : i + 1;
  }
  return text;
}

std::vector<std::string> exchange(c10d::Store& store, int rank, int world_size, const std::string& said,
                                  base::Deadline deadline, const Heard& heard) {
  return take_part(rank, world_size, [&] {
    enter(store);
    store.set(said_key(rank), bytes(said));
    return collect(store, rank, world_size, deadline, heard);
  });
}

std::vector<RankFacts> meet(c10d::Store& store, const RankFacts& mine, base::Deadline deadline) {
  const auto said = take_part(mine.rank, mine.world_size, [&] {
    enter(store);
    claim(store, mine);
    store.set(said_key(mine.rank), bytes(encode_facts(mine)));
    return collect(store, mine.rank, mine.world_size, deadline, [&](int, const std::string& text) {
      const auto other = decode_facts(text);
      check_world(mine, other);
      check_backends(mine, other);
    });
  });
  std::vector<RankFacts> ranks;
  for (const auto& text : said) ranks.push_back(decode_facts(text));
  return ranks;
}

void leave(c10d::Store& store, int rank, int world_size, base::Deadline deadline) {
  take_part(rank, world_size, [&] {
    const auto left = store.add("left", 1);
    if (rank == 0 && left < world_size)
      poll_until(deadline, [&] { return store.add("left", 0) >= world_size; });
  });
}

}  // namespace lockstep::comm
