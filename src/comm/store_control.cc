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

std::string key_of(uint64_t exchange, int rank) { return fmt::format("control/{}/{}", exchange, rank); }

// The number of ranks that have read an exchange; a key that exists once all have.
std::string read_key(uint64_t exchange) { return fmt::format("control/{}/read", exchange); }
std::string done_key(uint64_t exchange) { return fmt::format("control/{}/done", exchange); }

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
    for (const auto& text : read_all(number, label, deadline)) {
      auto entry = decode(text);
      const auto rank = static_cast<int>(all.size());
      if (entry.label != label) throw Disagreement{rank, 0, label, entry.label};
      all.push_back(std::move(entry.bytes));
    }
    let_host_go(number, deadline);
    erase(number);
    return all;
  } catch (...) {
    throw_diagnosis(group_, label, 0);
  }
}

std::vector<std::string> StoreControl::read_all(uint64_t number, const char* label, base::Deadline deadline) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < group_.world_size; ++rank) keys.push_back(key_of(number, rank));
  // Ranks that make an exchange on a failed group do so because of that failure.
  const bool knows_of_failure = group_.failed.load(std::memory_order_acquire);
  const auto give_up = [&] {
    const auto failure = group_.store->failure();
    if (!knows_of_failure && failure && failure->rank != group_.rank) {
      throw std::runtime_error("the wait was given up");
    }
    for (const auto& lost : group_.store->ended(store::Ending::Lost)) {
      // What a rank wrote before it ended can still be read.
      if (!group_.store->until(deadline)->check({keys[lost.rank]})) {
        throw std::runtime_error("Connection closed by peer");
      }
    }
  };
  try {
    const auto slow = base::Deadline::in(kSlow);
    return group_.store->until(slow.remaining() < deadline.remaining() ? slow : deadline)
        ->read(keys, give_up);
  } catch (const TimeoutError&) {
    report_waiting(group_, label);
  }
  try {
    return group_.store->until(deadline)->read(keys, give_up);
  } catch (const TimeoutError& error) {
    throw std::runtime_error(fmt::format("timed out: {}", error.what()));
  }
}

void StoreControl::let_host_go(uint64_t number, base::Deadline deadline) {
  const auto store = group_.store->until(deadline);
  if (group_.rank != kHost) {
    if (store->add(read_key(number), 1) == group_.world_size - 1) store->write(done_key(number), "");
    return;
  }
  try {
    store->read({done_key(number)}, [&] {
      if (!group_.store->ended(store::Ending::Lost).empty()) throw std::runtime_error("a rank is lost");
    });
  } catch (const std::exception& error) {
    base::log_debug("not all ranks have read this exchange: {}", error.what());
  }
}

// By now, all ranks have finished the previous exchange.
void StoreControl::erase(uint64_t number) {
  if (number == 0) return;
  group_.store->deleteKey(key_of(number - 1, group_.rank));
  if (group_.rank != kHost) return;
  group_.store->deleteKey(read_key(number - 1));
  group_.store->deleteKey(done_key(number - 1));
}

std::optional<StoreControl::Elsewhere> StoreControl::find_elsewhere(uint64_t data_call) {
  try {
    const auto store = group_.store->until(base::Deadline::in(kAnswerSoon));
    for (int rank = 0; rank < group_.world_size; ++rank) {
      if (rank == group_.rank) continue;
      const auto text = store->look(key_of(exchanges_, rank));
      if (!text) continue;
      auto entry = decode(*text);
      if (entry.data_calls < data_call) return Elsewhere{rank, std::move(entry.label)};
    }
  } catch (const Error& error) {
    base::log_debug("cannot read from the store which ranks are in an exchange: {}", error.what());
  }
  return std::nullopt;
}

}  // namespace lockstep::comm
