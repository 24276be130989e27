// Averages gradients during backward passes. The files beside this one do the work; this one knows when.
//
// A parameter's gradient is ready when autograd has accumulated it; a bucket when all of its gradients are;
// buckets are launched strictly in the order of the plan, which is the same on all ranks. The first
// synchronised pass launches nothing before its end: it shows in which order gradients become ready, and
// which of them are sparse, and the plan is made of that.
//
// A pass is synchronised if the forward that it goes back to was. That is learned from hooks on the forward's
// outputs, which autograd calls before any gradient of this model is ready. A pass that begins with a
// gradient instead goes back to a forward whose outputs have no tensors to put hooks on, or that the wrapper
// has not seen at all (ddp->forward): then it bypasses the wrapper, and the owner decides.
//
// Thread-safety: hooks may be called by several threads of autograd's; all else by one.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include <lockstep/comm_hook.h>
#include <lockstep/ddp_stats.h>
#include <lockstep/process_group.h>

#include "compat/autograd.h"
#include "reducer/bucket.h"
#include "reducer/flight.h"
#include "reducer/gradients.h"
#include "reducer/learn.h"
#include "reducer/owner.h"
#include "reducer/parameter.h"
#include "reducer/plan.h"
#include "reducer/timeline.h"
#include "reducer/unused.h"

namespace lockstep::reducer {

struct Options {
  PlanCaps caps;
  bool find_unused = false;
  bool static_graph = false;
  bool as_view = true;
};

// Whose gradients count in a step.
struct Turn {
  int participants = 1;
  int leader = 0;  // the first of them
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // The owner must outlive it.
  static std::shared_ptr<Reducer> make(std::shared_ptr<ProcessGroup> group, Parameters parameters,
                                       Options options, Owner& owner);
  ~Reducer();

  void set_hook(CommHook hook) { hook_ = std::move(hook); }

  // Before a forward pass: throws if the last backward pass was interrupted.
  void refuse_if_interrupted();
  // False when a parameter has got another dtype or device since: its hook and its bucket are of no use any
  // more.
  bool fits_parameters() const;
  // After a forward pass: how the backward pass through these outputs is to go.
  void expect(bool sync, Turn turn, std::vector<at::Tensor> outputs);
  // Takes part in a backward pass of the others, without gradients of its own.
  void shadow(Turn turn);

  DdpStats stats() const;

 private:
  Reducer(std::shared_ptr<ProcessGroup> group, Parameters parameters, Options options, Owner& owner);

  // One forward pass, as far as its backward pass needs to know.
  struct Forward {
    bool sync = true;
    Turn turn;
    Flags reach;  // empty: not known
    bool bypasses = false;
  };
  // One backward pass.
  struct Pass {
    bool sync = false;
    bool shadows = false;   // others' gradients only
    bool bypasses = false;  // goes back to no forward that the wrapper has seen, as far as is known
    Turn turn;
    std::weak_ptr<int> alive;  // expires when autograd has dropped the end-of-pass callback
  };
  // What is known of a parameter in this pass.
  struct State {
    int fired = 0;      // gradients in this pass
    bool used = false;  // got a gradient since the last synchronised pass
    bool ready = false;
    std::optional<Bystander> bystander;  // took no part
  };

  // Ends the group with whatever the body throws, UsageErrors as well: the others are in the same pass, or
  // will come to it, and wait for this rank's part.
  template <class Body>
  void guarded(Body&& body);
  void abandon(const Error& why);
  void drop_interrupted_pass();
  std::optional<Flags> reach_of_open_forwards();
  void begin(const Forward& forward);
  void begin_unannounced();
  void on_gradient(size_t index);
  void take_on(size_t index);
  void end();

  void check_gradient(size_t index);
  void set_ready(size_t index);
  void set_bystander(size_t index);
  double scale_of(const Bucket& bucket) const;  // what gradients are multiplied by before they travel
  void ready(size_t index);
  void launch_what_is_ready();
  void settle_the_rest();
  UsageError got_none(const std::vector<std::string>& names, bool static_graph) const;
  void finish();
  std::vector<bool> used_anywhere();
  void learn(const Turn& turn);
  void adopt(const Learned& agreed);
  void make_buckets(const std::vector<size_t>& order);
  void reset();

  const std::shared_ptr<ProcessGroup> group_;
  const Parameters parameters_;
  const Options options_;
  Owner& owner_;
  CommHook hook_;
  std::vector<compat::GradientHook> hooks_;
  std::unordered_map<compat::NodeAddress, size_t> nodes_;

  std::mutex mutex_;
  std::optional<Forward> unwatched_;  // the last forward, if no hook could be put on its outputs
  std::vector<std::weak_ptr<const Forward>> open_forwards_;  // whose graphs are alive
  std::optional<Pass> pass_;
  std::vector<State> states_;
  std::vector<size_t> ready_order_;  // seen in the first pass

  bool learned_ = false;
  bool counting_;  // static graph: this rank has not seen yet how often its parameters are used
  std::vector<bool> sparse_;
  std::vector<int> expected_;  // gradients of each parameter in a pass
  struct Place {
    size_t bucket = SIZE_MAX, slot = 0;  // SIZE_MAX: used nowhere, in a static graph
  };
  std::vector<Place> places_;
  std::vector<Bucket> buckets_;
  size_t last_dense_ = SIZE_MAX;  // of them
  std::vector<size_t> pending_;   // gradients that each bucket waits for
  std::vector<Flight> flights_;   // launched, in order
  Timeline timeline_;
};

}  // namespace lockstep::reducer
