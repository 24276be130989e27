// Averages gradients during backward passes: joins autograd's hooks, the tracker, which knows what a pass has
// done, and the launcher, which moves the bytes.
//
// Which forward a pass goes back to is learned from hooks on the forward's outputs, which autograd calls
// before any gradient of this model is ready. A pass that begins with a gradient instead goes back to a
// forward whose outputs have no tensors to put hooks on, or that the wrapper has not seen at all
// (ddp->forward): then it bypasses the wrapper, and the owner decides.
//
// Two acts are told apart: to drop a pass, which forgets what this rank has done in it, and to end the group,
// which lets the other ranks know that this one will not take part any more. An error inside a synchronised
// pass does both.
//
// Thread-safety: hooks may be called by several of autograd's threads; everything else by one.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <lockstep/comm_hook.h>
#include <lockstep/ddp_stats.h>
#include <lockstep/process_group.h>

#include "compat/autograd.h"
#include "reducer/launcher.h"
#include "reducer/owner.h"
#include "reducer/parameter.h"
#include "reducer/plan.h"
#include "reducer/tracker.h"

namespace lockstep::reducer {

struct Options {
  PlanCaps caps;
  GraphPolicy policy = kCompleteGraph;
  bool as_view = true;
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // The owner must outlive it. Of the group it keeps the handle, so that it follows that to another
  // generation.
  static std::shared_ptr<Reducer> make(std::shared_ptr<ProcessGroup> group, Parameters parameters,
                                       Options options, Owner& owner);
  ~Reducer();

  void set_hook(CommHook hook) { launcher_.set_hook(std::move(hook)); }

  // Before a forward pass: throws if the last backward pass was interrupted.
  void refuse_if_interrupted();
  // False when a parameter has got another dtype or device since: its hook and its bucket are of no use then.
  bool fits_parameters() const;
  // After a forward pass: how the backward pass through these outputs is to go.
  void expect(bool sync, Turn turn, std::vector<at::Tensor> outputs);
  // Takes part in a backward pass of the others, without gradients of its own.
  void shadow(Turn turn);

  DdpStats stats() const { return launcher_.stats(); }

 private:
  Reducer(std::shared_ptr<ProcessGroup> group, Parameters parameters, Options options, Owner& owner);

  // With whatever the body throws, drops the pass and ends the group: the others are in the same pass, or
  // will be, and wait for this rank's part.
  template <class Body>
  void guarded(Body&& body);
  void drop_and_end(const Error& why);
  void drop_interrupted_pass();
  void forget_pass();

  void begin(const Forward& forward);
  void begin_unannounced();
  void on_gradient(size_t index);
  void end();
  void check_gradient(size_t index) const;
  void apply(const std::vector<Settled>& settled);
  void settle_the_rest();
  std::vector<bool> used_anywhere();
  void learn();
  void plan(const Learned& agreed);
  UsageError got_none(const std::vector<size_t>& missing, bool repeats) const;
  Flags requires_grad() const;

  const std::shared_ptr<ProcessGroup> group_;
  const Parameters parameters_;
  Owner& owner_;
  std::vector<compat::GradientHook> hooks_;
  std::unordered_map<compat::NodeAddress, size_t> nodes_;

  std::mutex mutex_;
  Tracker tracker_;
  Launcher launcher_;
};

}  // namespace lockstep::reducer
