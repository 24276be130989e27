#include "shm/process_memory.h"

#include <mutex>
#include <pthread.h>

namespace lockstep::shm {

namespace {

// Never destroyed, because tensors in static objects may outlive it.
struct Owner {
  std::mutex mutex;
  ProcessMemory memory;

  static Owner& instance() {
    static auto& owner = *make();
    return owner;
  }

  static Owner* make() {
    Segment::watch_forks();
    ::pthread_atfork([] { instance().before_fork(); }, [] { instance().after_fork(); },
                     [] { instance().after_fork(); });
    return new Owner;
  }

  // A child must not inherit a locked mutex.
  void before_fork() {
    mutex.lock();
    if (memory.relocated) memory.relocated->before_fork();
  }
  void after_fork() {
    if (memory.relocated) memory.relocated->after_fork();
    mutex.unlock();
  }
};

}  // namespace

ProcessMemory process_memory() {
  auto& owner = Owner::instance();
  const std::lock_guard lock(owner.mutex);
  auto& memory = owner.memory;
  if (!memory.arena || memory.arena->segment().inherited()) {
    auto arena = std::make_shared<Arena>(Segment::create("lockstep-memory", Segment::kTableBytes));
    auto relocated = std::make_shared<Relocated>(arena);
    memory = {std::move(arena), std::move(relocated)};
  }
  return memory;
}

}  // namespace lockstep::shm
