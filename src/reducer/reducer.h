// Averages gradients during backward passes: connects autograd's hooks, the tracker, which knows what a pass
// has done, and the launcher, which moves the bytes.
//
// The forward to which a pass belongs is found by hooks on the forward's outputs, which autograd calls before
// any gradient of this model is ready. If a pass begins with a gradient instead, the outputs of its forward
// contain no tensors for such hooks, or the wrapper has not seen the forward at all (ddp->forward). In the
// latter case the pass bypasses the wrapper, and the owner decides.
//
// Two acts are distinguished: dropping a pass, which forgets what this rank has done in it, and ending the
// group, which notifies the other ranks that this one no longer takes part. An error in a synchronised pass
// does both.
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
  Bucket::Copies copies = Bucket::Copies::OnePerRank;  // of parameters that an optimizer updates
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // The owner must outlive the reducer. The reducer keeps the handle of the group, and so follows it to
  // another generation.
  static std::shared_ptr<Reducer> make(std::shared_ptr<ProcessGroup> group, Parameters parameters,
                                       Options options, Owner& owner);
  ~Reducer();

  void set_hook(CommHook hook) { launcher_.set_hook(std::move(hook)); }

  // Before a forward pass: throws if the last backward pass was interrupted.
  void refuse_if_interrupted();
  // False if the dtype or device of a parameter has changed since then, or if it was loaded: its hook and its
  // bucket are then useless.
  bool fits_parameters() const;
  // After a forward pass: registers how its backward pass, which goes through these outputs, is to be
  // handled.
  void expect(bool sync, Turn turn, std::vector<at::Tensor> outputs);
  // Takes part in a backward pass of the other ranks, without gradients of its own. Blocks until it is
  // complete.
  void shadow(Turn turn);

  // For an optimizer that updates the parameters from the buckets.
  void hold(Hold what, bool narrow);
  bool holds(size_t parameter) const { return launcher_.holds(parameter); }
  const Parameters& parameters() const { return parameters_; }
  // Blocks; all ranks must call it after a synchronised pass.
  void update(Updater& updater);
  // Whether there was such a pass since the last update. What replaces the reducer loses its gradients.
  bool awaits_update() const { return awaits_update_; }
  void skip_update() { awaits_update_ = false; }
  // The next update lays out the buckets again.
  void forget_layout() { launcher_.forget_layout(); }
  // The same for a transform that only looks at the averages.
  void measure(const std::function<comm::Transform&(const Held&)>& transform_of);

  DdpStats stats() const { return launcher_.stats(); }

 private:
  Reducer(std::shared_ptr<ProcessGroup> group, Parameters parameters, Options options, Owner& owner);

  // If `body` throws, drops the pass and ends the group: the other ranks are in the same pass, or will be,
  // and wait for this rank's part.
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
  Flags have_gradients();
  void check_update() const;
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
  // For updates, since hold(): there was a synchronised pass; it was the last one; no update has followed.
  bool has_gradients_ = false, synchronised_ = false, awaits_update_ = false;
};

}  // namespace lockstep::reducer
