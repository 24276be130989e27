// For as long as the object lives, threads that this thread starts inherit SCHED_BATCH and keep it: on
// wake-up such a thread waits for its turn instead of preempting the thread that runs on the CPU. Its fair
// share of CPU time stays the same. If the user has chosen this thread's scheduling policy, nothing changes.
#pragma once

#include <sched.h>

namespace lockstep::gloo {

class PatientThreads {
 public:
  PatientThreads() : ours_(::sched_getscheduler(0) == SCHED_OTHER && set(SCHED_BATCH)) {}
  ~PatientThreads() {
    if (ours_) set(SCHED_OTHER);
  }
  PatientThreads(const PatientThreads&) = delete;
  PatientThreads& operator=(const PatientThreads&) = delete;

 private:
  // Failure is ignored: this affects only speed.
  static bool set(int policy) {
    const sched_param param{};
    return ::sched_setscheduler(0, policy, &param) == 0;
  }

  const bool ours_;
};

}  // namespace lockstep::gloo
