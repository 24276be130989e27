// Any c10d backend as a transport. The transport for Gloo (gloo/transport.h) derives from it.
//
// The threads of such a backend wait for peers and do not notice the end of a third rank. So a wait here also
// checks the other ranks, and gives the call up if it can no longer complete. The backend's threads then keep
// the memory of the call alive.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include <lockstep/c10d.h>

#include "base/deadline.h"
#include "comm/diagnose.h"
#include "comm/group.h"
#include "comm/lookout.h"
#include "comm/store_control.h"
#include "comm/transport.h"
#include "foreign/calls.h"

namespace lockstep::foreign {

// A call in progress on the backend.
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
  std::function<void()> bring_home;  // copies the results into the request's pieces; may be empty
  const base::Deadline usual;        // the other ranks are not checked before this
  std::shared_ptr<void> compared;    // for a derived transport that compares the ranks' calls
};

class Transport : public comm::Transport {
 public:
  // `group` owns the transport. `backend` connects its ranks.
  Transport(ProcessGroup::Impl& group, c10::intrusive_ptr<c10d_backend> backend);
  ~Transport() override;

  bool averages(c10::ScalarType, c10::Device) const override { return false; }
  bool carries(c10::Device) const override { return true; }  // the backend itself rejects others
  bool needs_owners() const override { return true; }
  uint64_t calls() const override { return calls_; }

  void run(comm::Request& request) override;
  std::shared_ptr<Work::State> start(comm::Request&& request) override;
  void fail(const Error& why) noexcept override;
  const c10::intrusive_ptr<c10d_backend>& backend() const { return backend_; }

  // The control channel of the same group. A rank that does not make the same calls may be waiting in it.
  void watch_control(comm::StoreControl& control) { control_ = &control; }

 protected:
  // Starts the call on the backend: sets work and bring_home.
  virtual void begin(Started& call);
  // The dtype as which the backend gets the request's tensors.
  virtual c10::ScalarType wire_dtype(const comm::Request& request) const { return request.dtype; }
  // Blocks until the backend has done its part.
  virtual void wait(Started& call);
  // Makes the backend's threads stop waiting, if possible.
  virtual void interrupt() noexcept {}

  // Checks the other ranks while this call is slow.
  comm::Lookout lookout_for(const Started& call) { return {group_, control_, call.number, call.request}; }
  // Waits for the time that a call usually takes. Returns whether the call has ended.
  static bool ends_soon(Started& call);
  // Waits for a call that has not ended by then.
  static void wait_and_watch(Started& call, comm::Lookout& lookout);

  ProcessGroup::Impl& group_;
  c10::intrusive_ptr<c10d_backend> backend_;  // null once it has been given up

 private:
  struct Call;
  std::atomic<uint64_t> calls_{0};
  comm::StoreControl* control_ = nullptr;
};

}  // namespace lockstep::foreign
