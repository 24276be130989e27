#include "comm/store_control.h"

#include <chrono>
#include <fmt/format.h>
#include <stdexcept>
#include <utility>

#include <lockstep/error.h>

#include "base/deadline.h"
#include "base/log.h"
#include "comm/diagnose.h"

namespace lockstep::comm {

namespace {

using namespace std::chrono_literals;

// A wait that takes longer than this is published in the store.
constexpr auto kSlow = 1s;
constexpr auto kAnswerSoon = 500ms;
constexpr size_t kLargeBytes = size_t{64} << 10;

std::string key_of(uint64_t exchange, int rank) { return fmt::format("control/{}/{}", exchange, rank); }

// Exists once the rank has read what all ranks wrote.
std::string read_key(uint64_t exchange, int rank) {
  return fmt::format("control/{}/read/{}", exchange, rank);
}

// The rank whose process may host the store.
constexpr int kHost = 0;

// What a rank writes: the number of data calls that it had started, the label, and the bytes.
struct Entry {
  uint64_t data_calls = 0;
  std::string label;
  std::string bytes;
};

std::string encode(const Entry& entry) {
  return fmt::format("{}\n{}\n", entry.data_calls, entry.label) + entry.bytes;
}

Entry decode(const std::string& text) {
  const auto first = text.find('\n');
  const auto second = first == std::string::npos ? first : text.find('\n', first + 1);
  if (second == std::string::npos) throw MismatchError("a control channel key has an unexpected value");
  return {.data_calls = std::stoull(text.substr(0, first)),
          .label = text.substr(first + 1, second - first - 1),
          .bytes = text.substr(second + 1)};
}

}  // namespace

StoreControl::StoreControl(ProcessGroup::Impl& group, std::function<uint64_t()> data_calls)
    : Control(group.rank, group.world_size), group_(group), data_calls_(std::move(data_calls)) {}

std::vector<std::string> StoreControl::exchange_bytes(const char* label, std::string_view mine) {
  const auto number = exchanges_++;
  try {
    const auto deadline = base::Deadline::in(group_.timeout);
    const auto store = group_.store->until(deadline);
    store->write(key_of(number, group_.rank),
                 encode({.data_calls = data_calls_(), .label = label, .bytes = std::string(mine)}));
    std::vector<std::string> all;
    for (const auto& text : read_all(number, label, mine.size(), deadline)) {
      auto entry = decode(text);
      const auto rank = static_cast<int>(all.size());
      if (entry.label != label) throw Disagreement{rank, 0, label, entry.label};
      all.push_back(std::move(entry.bytes));
    }
    settle(number, deadline);
    return all;
  } catch (const UsageError& error) {
    // The exchange has begun: the others wait for this rank's part.
    throw Error(error.what());
  } catch (...) {
    throw_diagnosis(group_, label, 0);
  }
}

std::function<void()> StoreControl::giving_up(const std::vector<std::string>& keys,
                                              base::Deadline deadline) const {
  return [this, &keys, deadline, knows_of_failure = group_has_failed()] {
    const auto failure = group_.store->failure();
    if (!knows_of_failure && failure && failure->rank != group_.rank) {
      throw std::runtime_error("the wait was given up");
    }
    for (const int rank : ended_ranks(group_)) {
      // What a rank wrote before it ended is there.
      if (!group_.store->until(deadline)->check({keys[rank]})) {
        throw std::runtime_error("Connection closed by peer");
      }
    }
  };
}

std::vector<std::string> StoreControl::read_all(uint64_t number, const char* label, size_t own_bytes,
                                                base::Deadline deadline) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < group_.world_size; ++rank) keys.push_back(key_of(number, rank));
  const auto give_up = giving_up(keys, deadline);
  // Many large values do not fit into one answer of the store.
  const auto read = [&](base::Deadline until) {
    const auto store = group_.store->until(until);
    if (own_bytes < kLargeBytes) return store->read(keys, give_up);
    std::vector<std::string> values;
    for (const auto& key : keys) values.push_back(store->read({key}, give_up).front());
    return values;
  };
  try {
    const auto slow = base::Deadline::in(kSlow);
    return read(slow.remaining() < deadline.remaining() ? slow : deadline);
  } catch (const TimeoutError&) {
    report_waiting(group_, label);
  }
  try {
    return read(deadline);
  } catch (const TimeoutError& error) {
    throw std::runtime_error(fmt::format("timed out: {}", error.what()));
  }
}

// This rank has read everything, so an error here is not a failure of the exchange. The host may end before
// it has answered the last rank.
void StoreControl::settle(uint64_t number, base::Deadline deadline) const {
  const auto store = group_.store->until(deadline);
  const bool hosts = group_.rank == kHost;
  const auto try_to = [](auto&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      base::log_debug("after an exchange of the control channel: {}", error.what());
    }
  };
  try_to([&] {
    if (!hosts) {
      store->write(read_key(number, group_.rank), "");
      return;
    }
    std::vector<std::string> keys;
    for (int rank = 0; rank < group_.world_size; ++rank) {
      keys.push_back(rank == kHost ? key_of(number, rank) : read_key(number, rank));
    }
    store->read(keys, giving_up(keys, deadline));
  });
  // All ranks have finished the exchange before.
  if (number == 0) return;
  try_to([&] {
    store->deleteKey(key_of(number - 1, group_.rank));
    if (!hosts) store->deleteKey(read_key(number - 1, group_.rank));
  });
}

std::optional<StoreControl::Elsewhere> StoreControl::find_elsewhere(uint64_t data_call) {
  next_looked_at_ = (next_looked_at_ + 1) % group_.world_size;
  const int rank = next_looked_at_;
  if (rank == group_.rank) return std::nullopt;
  try {
    const auto store = group_.store->until(base::Deadline::in(kAnswerSoon));
    if (const auto text = store->look(key_of(exchanges_, rank))) {
      auto entry = decode(*text);
      if (entry.data_calls < data_call) return Elsewhere{rank, std::move(entry.label)};
    }
  } catch (const Error& error) {
    base::log_debug("cannot read from the store which ranks are in an exchange: {}", error.what());
  }
  return std::nullopt;
}

}  // namespace lockstep::comm
