// A c10d backend of somebody else's as a transport. Gloo's (gloo/transport.h) is derived from it.
//
// Such a backend has threads of its own that wait for peers and do not notice the end of a third rank. So
// whoever waits here also looks around, and gives the call up when there is no hope for it; the
// backend's threads keep the memory of the call alive.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include <lockstep/c10d.h>

#include "base/deadline.h"
#include "comm/diagnose.h"
#include "comm/group.h"
#include "comm/store_control.h"
#include "comm/transport.h"
#include "foreign/calls.h"

namespace lockstep::foreign {

// A call under way on the backend.
struct Started : Work::State {
  Started(ProcessGroup::Impl& owner, comm::Request&& described, uint64_t call_number,
          std::chrono::milliseconds usual_wait)
      : State(std::move(described)),
        facts(owner),
        number(call_number),
        usual(base::Deadline::in(usual_wait)) {}

  std::string text() const { return comm::describe(request); }

  ProcessGroup::Impl& facts;
  const uint64_t number;             // of the collective; 0 for a message
  C10dWork work;                     // null once it is complete
  std::function<void()> bring_home;  // copies what travelled into the request's pieces; may be empty
  const base::Deadline usual;        // until then nothing is suspicious
  std::shared_ptr<void> compared;    // what a derived transport sends along to compare the ranks' calls
};

class Transport : public comm::Transport {
 public:
  // `group` owns the transport. `backend` connects its ranks.
  Transport(ProcessGroup::Impl& group, c10::intrusive_ptr<c10d_backend> backend);
  ~Transport() override;

  bool averages(c10::ScalarType) const override { return false; }
  bool carries(c10::Device) const override { return true; }  // it refuses by itself
  bool needs_owners() const override { return true; }

  void run(comm::Request& request) override;
  std::shared_ptr<Work::State> start(comm::Request&& request) override;
  void fail(const Error& why) noexcept override;
  const c10::intrusive_ptr<c10d_backend>& backend() const { return backend_; }

  uint64_t calls() const { return calls_; }  // collectives begun
  // The control channel of the same group, in which a rank may be that makes other calls than this one.
  void watch_control(comm::StoreControl& control) { control_ = &control; }

 protected:
  // Starts the call on the backend: fills in work and bring_home.
  virtual void begin(Started& call);
  // Returns when the backend has done its part.
  virtual void wait(Started& call);
  // Makes the backend's threads stop waiting, if that is possible.
  virtual void interrupt() noexcept {}

  // Looks around while a call takes its time.
  class Lookout {
   public:
    Lookout(Transport& transport, const Started& call);
    // Whether there is no hope for the call. Leaves word of a slow wait. May be asked by another thread,
    // though never by two at once; does not throw.
    bool hopeless();
    // Throws what hopeless() found, if that says more than the end of the call will.
    void report() const;

   private:
    Transport& transport_;
    const Started& call_;
    const base::Deadline slow_;
    base::Deadline look_;
    base::Deadline look_into_control_;
    std::chrono::milliseconds between_;
    int looks_ = 0;
    bool reported_ = false;
    std::optional<comm::Disagreement> elsewhere_;
  };
  // Whether the call ends within the time that is not suspicious.
  static bool ends_soon(Started& call);
  // Waits for one that does not.
  static void wait_and_watch(Started& call, Lookout& lookout);

  ProcessGroup::Impl& group_;
  c10::intrusive_ptr<c10d_backend> backend_;  // null once it has been given up

 private:
  struct Call;
  std::atomic<uint64_t> calls_{0};
  comm::StoreControl* control_ = nullptr;
};

}  // namespace lockstep::foreign
