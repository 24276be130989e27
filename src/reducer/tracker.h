// Tracks forward and backward passes: to which forward a pass belongs, which gradients have arrived, and
// which are complete, unused or missing. It has no tensors and moves no bytes; the launcher does that.
//
// A pass is synchronised if its forward was. The first synchronised pass, the learning pass, launches nothing
// before its end: it shows in which order gradients become ready, and which of them are sparse. The plan is
// based on that.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "reducer/policy.h"

namespace lockstep::reducer {

using Flags = std::vector<bool>;  // one for each parameter

// The ranks whose gradients count in a step.
struct Turn {
  int participants = 1;
  int leader = 0;  // the first of them
};

// The properties of a forward pass that its backward pass needs.
struct Forward {
  bool sync = true;
  Turn turn = {};
  Flags reach = {};       // the parameters on which its outputs depend; empty: unknown
  bool bypasses = false;  // the wrapper has not seen it
};

// What the ranks agree on in the learning pass.
struct Learned {
  std::vector<size_t> order;  // of the parameters: the leader's
  Flags sparse;               // on some rank
  Flags used;                 // on some rank
};

// The role of a parameter in a pass, once it is known.
struct Settled {
  size_t parameter;
  bool takes_part;  // its gradient is sent and becomes the average; otherwise it is a bystander, whose
                    // gradient stays unchanged unless another rank has used the parameter
};

class Tracker {
 public:
  Tracker(size_t parameters, GraphPolicy policy);

  const GraphPolicy& policy() const { return policy_; }

  // ---- Forward passes

  // Registers a forward. If it is `watched`, begin() will be called with it when the gradients of its outputs
  // arrive. Otherwise its pass begins with the first gradient, like that of a forward that was not
  // registered. The result must be kept alive as long as the graph of the outputs.
  std::shared_ptr<const Forward> expect(Forward forward, bool watched);
  // Returns the last forward if it was not watched, once.
  std::optional<Forward> take_unwatched();

  // ---- Backward passes

  struct Pass {
    bool sync = false;
    bool bypasses = false;  // belongs to no forward that the wrapper has seen, as far as is known
    Turn turn = {};
    std::weak_ptr<void> alive = {};  // expires when autograd has dropped the end-of-pass callback
  };
  const std::optional<Pass>& pass() const { return pass_; }
  // Whether the pass threw an exception, so that its end was never reached.
  bool interrupted() const { return pass_ && pass_->alive.expired(); }

  // Begins a pass, or adds another forward to the current one. Returns whether this makes the pass
  // synchronised.
  bool begin(const Forward& forward, const std::shared_ptr<void>& alive);
  // At the beginning of a synchronised pass: settles the parameters that are known to get no gradient.
  // `knows_reach`: the forward that began the pass knows on which parameters its outputs depend.
  std::vector<Settled> settle_early(const Flags& requires_grad, bool knows_reach);

  enum class Arrival {
    Counted,     // nothing else to do: not synchronised, learning, or more are expected
    Complete,    // the last gradient of this parameter in this pass
    OneTooMany,  // all expected gradients had already arrived
    Unexpected   // it was settled early: its place in the bucket is already filled
  };
  Arrival add_gradient(size_t parameter);

  // At the end of a synchronised pass, when there is a plan: settles the remaining parameters.
  struct Rest {
    std::vector<Settled> settled;
    std::vector<size_t> missing;         // should have got a gradient, but did not
    std::optional<size_t> one_too_many;  // got more than expected
  };
  Rest settle_rest(const Flags& requires_grad);
  // The pass has ended or is dropped. Gradients from passes that were not synchronised are remembered until
  // the next synchronised one.
  void end_pass();
  // A pass of the other ranks is over, in which this one had no gradients.
  void end_shadow();

  // ---- The learning pass

  bool learned() const { return learned_; }
  // What this rank has seen. missing, one_too_many: as above.
  struct Seen {
    Learned learned;
    std::vector<size_t> missing;
    std::optional<size_t> one_too_many;
  };
  Seen seen(const Flags& requires_grad, const Flags& sparse) const;
  // For a rank that has seen nothing.
  Learned seen_nothing() const;
  // Adopts what all ranks have agreed on. Returns the parameters that get a place in the plan, in order.
  std::vector<size_t> adopt(const Learned& agreed);
  // The plan is there.
  void set_learned() { learned_ = true; }

  bool is_sparse(size_t parameter) const { return parameters_[parameter].sparse; }
  void set_sparse(size_t parameter) { parameters_[parameter].sparse = true; }
  bool was_used(size_t parameter) const { return parameters_[parameter].used; }

 private:
  // The state of a parameter.
  struct Known {
    bool sparse = false;
    bool planned = true;  // false: no rank uses it, in a graph that repeats its first pass
    int expected = 1;     // number of gradients in a pass
    int arrived = 0;      // in this pass
    bool used = false;    // got a gradient since the last synchronised pass
    bool settled = false;
  };
  Settled settle(size_t parameter, bool takes_part);
  void clear(bool synchronised);
  std::optional<Flags> reach_of_open_forwards() const;

  const GraphPolicy policy_;
  std::vector<Known> parameters_;
  std::optional<Forward> unwatched_;                         // the last forward, if it is not watched
  std::vector<std::weak_ptr<const Forward>> open_forwards_;  // whose graphs are alive
  std::optional<Pass> pass_;
  bool learned_ = false;
  bool counting_;                    // this rank does not know yet how often its parameters are used
  std::vector<size_t> ready_order_;  // seen in the learning pass
};

// The parameters that were ready, in that order; then the others, last registered first.
std::vector<size_t> complete_order(const std::vector<size_t>& ready, size_t count);

}  // namespace lockstep::reducer
