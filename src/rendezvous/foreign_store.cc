#include "rendezvous/foreign_store.h"

#include <fmt/format.h>
#include <sstream>
#include <thread>

#include <lockstep/error.h>

#include "base/aside.h"
#include "base/error_text.h"
#include "base/host.h"
#include "base/log.h"
#include "compat/message_of.h"

namespace lockstep::rendezvous {

namespace {

using namespace std::chrono_literals;
using base::Deadline;

std::vector<uint8_t> as_bytes_of_store(const std::string& text) { return {text.begin(), text.end()}; }
std::string as_text_of_store(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string failed_key(const std::string& topic) { return topic + "failed"; }

}  // namespace

ForeignStore::ForeignStore(c10::intrusive_ptr<c10d::Store> store, int rank)
    : store_(std::move(store)), rank_(rank) {}

ForeignStore::~ForeignStore() {
  if (::getpid() != made_by_) store_.release();
}

template <class Call>
auto ForeignStore::within(Deadline deadline, Call call) const {
  const auto where = [&] { return fmt::format("rank {}, host {}", rank_, base::host_name()); };
  const auto throw_timeout = [&] {
    throw TimeoutError(base::compose(
        {.what = "the store where the ranks meet does not answer",
         .where = where(),
         .evidence = fmt::format("within {:.1f} s", static_cast<double>(deadline.budget().count()) / 1000.0),
         .hint = "look at the process that hosts it: rank 0, or the launcher's agent"}));
  };
  // A store that has not answered once is not used again: its connection still waits for that answer.
  if (stuck_) throw_timeout();
  auto answer = base::run_aside([store = store_, call = std::move(call)]() mutable { return call(*store); });
  // At least this long for one answer: a deadline that has passed says nothing about the store.
  const auto patience = std::max<std::chrono::milliseconds>(deadline.remaining(), 1s);
  if (answer.wait_for(patience) != std::future_status::ready) {
    stuck_ = true;
    throw_timeout();
  }
  try {
    return answer.get();
  } catch (const std::exception& error) {
    throw PeerLostError(base::compose({.what = "the store where the ranks meet is gone",
                                       .where = where(),
                                       .evidence = compat::message_of(error),
                                       .hint = "look at the output of the process that hosts it"}));
  }
}

void ForeignStore::set(const std::string& key, const std::string& value, Deadline deadline) {
  within(deadline, [key, value](c10d::Store& store) { store.set(key, as_bytes_of_store(value)); });
  const std::lock_guard lock(mutex_);
  written_.insert(key);
}

std::string ForeignStore::compare_set(const std::string& key, const std::string& expected,
                                      const std::string& wanted, Deadline deadline) {
  return as_text_of_store(within(deadline, [=](c10d::Store& store) {
    return store.compareSet(key, as_bytes_of_store(expected), as_bytes_of_store(wanted));
  }));
}

// In LibTorch 1.13, the store's own wait cannot be given up: its late answer would be mistaken for that of
// the next request. So poll, with increasing pauses.
ForeignStore::Values ForeignStore::get(const Values& keys, Deadline deadline, const GiveUp& give_up) {
  for (auto pause = 1ms; !check(keys, deadline); pause = std::min(pause * 2, 32ms)) {
    if (give_up) give_up();
    if (deadline.expired()) {
      throw TimeoutError(
          base::compose({.what = fmt::format("\"{}\" did not appear in the store", keys.front()),
                         .where = fmt::format("rank {}, host {}", rank_, base::host_name()),
                         .evidence = fmt::format("within {:.1f} s",
                                                 static_cast<double>(deadline.budget().count()) / 1000.0),
                         .hint = "look at the output of the other ranks"}));
    }
    std::this_thread::sleep_for(std::min(std::chrono::milliseconds(pause), deadline.remaining()));
  }
  return within(deadline, [keys](c10d::Store& store) {
    Values values;
    for (const auto& key : keys) values.push_back(as_text_of_store(store.get(key)));
    return values;
  });
}

int64_t ForeignStore::add(const std::string& key, int64_t amount, Deadline deadline) {
  const auto sum = within(deadline, [=](c10d::Store& store) { return store.add(key, amount); });
  const std::lock_guard lock(mutex_);
  written_.insert(key);
  return sum;
}

bool ForeignStore::check(const Values& keys, Deadline deadline) {
  return within(deadline, [keys](c10d::Store& store) { return store.check(keys); });
}

bool ForeignStore::erase(const std::string& key, Deadline deadline) {
  const bool erased = within(deadline, [key](c10d::Store& store) { return store.deleteKey(key); });
  const std::lock_guard lock(mutex_);
  written_.erase(key);
  return erased;
}

int64_t ForeignStore::count(Deadline deadline) {
  return within(deadline, [](c10d::Store& store) { return store.getNumKeys(); });
}

// A rank may still be reading what another one has written, so the last rank erases the keys of all: each
// leaves a list of its own.
void ForeignStore::forget(const std::string& prefix, int holders) noexcept {
  try {
    std::string keys;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(written_, [&](const std::string& key) {
        if (!key.starts_with(prefix)) return false;
        keys += key + '\n';
        return true;
      });
    }
    if (stuck_) return;
    base::run_aside([store = store_, prefix, holders, keys = std::move(keys)] {
      const auto list_of = [&](int64_t holder) { return fmt::format("{}/forgotten/{}", prefix, holder); };
      const auto begun = prefix + "/forgotten/begun", done = prefix + "/forgotten/done";
      store->set(list_of(store->add(begun, 1)), as_bytes_of_store(keys));
      if (store->add(done, 1) < holders) return;
      for (int holder = 1; holder <= holders; ++holder) {
        std::istringstream list(as_text_of_store(store->get(list_of(holder))));
        for (std::string key; std::getline(list, key);) store->deleteKey(key);
        store->deleteKey(list_of(holder));
      }
      store->deleteKey(begun);
      store->deleteKey(done);
    });
  } catch (const std::exception& error) {
    base::log_debug("cannot erase keys of the store: {}", error.what());
  }
}

void ForeignStore::fail(const std::string& topic, const std::string& text) noexcept {
  try {
    const auto deadline = Deadline::in(1s);
    if (!check({failed_key(topic)}, deadline))
      set(failed_key(topic), fmt::format("{}\n{}", rank_, text), deadline);
  } catch (const std::exception& error) {
    base::log_debug("cannot publish an error: {}", error.what());
  }
}

std::optional<store::Failure> ForeignStore::failure(const std::string& topic) const {
  try {
    const auto text = within(Deadline::in(1s), [key = failed_key(topic)](c10d::Store& store) {
      return store.check({key}) ? as_text_of_store(store.get(key)) : std::string();
    });
    const auto end = text.find('\n');
    if (end == std::string::npos) return std::nullopt;
    return store::Failure{std::stoi(text), text.substr(end + 1), Deadline::Clock::now()};
  } catch (const std::exception& error) {
    base::log_debug("the store does not answer: {}", error.what());
    return std::nullopt;
  }
}

}  // namespace lockstep::rendezvous
