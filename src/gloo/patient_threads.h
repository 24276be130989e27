// While it lives, threads that this thread starts are patient for good: one that wakes up waits for its turn
// instead of taking the CPU from the thread that runs there (SCHED_BATCH; they get their fair share all the
// same). A thread whose scheduling was chosen by the user is left as it is, and so are its children.
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
  // It is about speed only: a system that refuses goes on without.
  static bool set(int policy) {
    const sched_param param{};
    return ::sched_setscheduler(0, policy, &param) == 0;
  }

  const bool ours_;
};

}  // namespace lockstep::gloo
