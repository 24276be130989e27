#include "store/forked.h"

#include <algorithm>
#include <mutex>
#include <pthread.h>
#include <vector>

namespace lockstep::store {

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<ClosedAfterFork*> all;
};

Registry& registry() {
  static auto* const instance = [] {
    auto* made = new Registry;
    // The lock is held during the fork, so that the list is consistent in the child.
    ::pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                     [] {
                       for (auto* one : registry().all) one->close_in_child();
                       registry().mutex.unlock();
                     });
    return made;
  }();
  return *instance;
}

}  // namespace

ClosedAfterFork::ClosedAfterFork() {
  const std::lock_guard lock(registry().mutex);
  registry().all.push_back(this);
}

ClosedAfterFork::~ClosedAfterFork() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().all, this);
}

std::unique_lock<std::mutex> ClosedAfterFork::no_forks() { return std::unique_lock(registry().mutex); }

}  // namespace lockstep::store
