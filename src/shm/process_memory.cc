#include "shm/process_memory.h"

#include <mutex>
#include <pthread.h>

namespace lockstep::shm {

namespace {

// Never destroyed, because tensors in static objects may outlive it.
struct Owner {
  std::mutex mutex;
  std::shared_ptr<Arena> arena;

  static Owner& instance() {
    static auto& owner = *make();
    return owner;
  }

  // A child that is forked while another thread holds the lock must not inherit a locked mutex.
  static Owner* make() {
    ::pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                     [] { instance().mutex.unlock(); });
    return new Owner;
  }
};

}  // namespace

std::shared_ptr<Arena> process_memory() {
  auto& owner = Owner::instance();
  const std::lock_guard lock(owner.mutex);
  if (!owner.arena || owner.arena->segment().inherited()) {
    owner.arena = std::make_shared<Arena>(Segment::create("lockstep-memory", Segment::kTableBytes));
  }
  return owner.arena;
}

}  // namespace lockstep::shm
