// Tracks forward and backward passes: which forward a pass goes back to, which gradients have arrived, which
// are complete, unused or missing. Decides nothing about bytes and knows no tensors; the launcher moves them.
//
// A pass is synchronised if the forward that it goes back to was. The first synchronised pass, the learning
// pass, launches nothing before its end: it shows in which order gradients become ready, and which of them
// are sparse, and the plan is made of that.
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

// Whose gradients count in a step.
struct Turn {
  int participants = 1;
  int leader = 0;  // the first of them
};

// One forward pass, as far as its backward pass needs to know.
struct Forward {
  bool sync = true;
  Turn turn = {};
  Flags reach = {};       // the parameters that its outputs depend on; empty: not known
  bool bypasses = false;  // the wrapper has not seen it
};

// What the ranks agree on in the learning pass.
struct Learned {
  std::vector<size_t> order;  // of the parameters: the leader's
  Flags sparse;               // on some rank
  Flags used;                 // on some rank
};

// What becomes of a parameter in a pass, once that is known.
struct Settled {
  size_t parameter;
  bool takes_part;  // its gradient travels and becomes the average; otherwise it is a bystander, whose
                    // gradient stays as it was unless another rank has used it
};

class Tracker {
 public:
  Tracker(size_t parameters, GraphPolicy policy);

  const GraphPolicy& policy() const { return policy_; }

  // ---- Forward passes

  // The pass through this forward's outputs will begin() with it, if `watched`: somebody will be told when
  // their gradients arrive. Otherwise it begins with the first gradient, as that of a forward that nobody has
  // announced. What is returned must be kept alive as long as the outputs' graph is.
  std::shared_ptr<const Forward> expect(Forward forward, bool watched);
  std::optional<Forward> take_unwatched();

  // ---- Backward passes

  struct Pass {
    bool sync = false;
    bool bypasses = false;  // goes back to no forward that the wrapper has seen, as far as is known
    Turn turn = {};
    std::weak_ptr<void> alive = {};  // expires when autograd has dropped the end-of-pass callback
  };
  const std::optional<Pass>& pass() const { return pass_; }
  // An exception came out of the pass, so that its end never came.
  bool interrupted() const { return pass_ && pass_->alive.expired(); }

  // Begins a pass, or adds another forward to the one under way. True if it becomes synchronised by that.
  bool begin(const Forward& forward, const std::shared_ptr<void>& alive);
  // At the beginning of a synchronised pass: parameters that will get no gradient, as far as is known.
  // `knows_reach`: the forward that began it tells what its outputs depend on.
  std::vector<Settled> settle_early(const Flags& requires_grad, bool knows_reach);

  enum class Arrival {
    Counted,     // nothing else to do: not synchronised, learning, or more to come
    Complete,    // the last gradient of this parameter in this pass
    OneTooMany,  // it had got all that was expected
    Unexpected   // it had been settled early: its place in the bucket is taken
  };
  Arrival add_gradient(size_t parameter);

  // At the end of a synchronised pass, when the plan is there: what becomes of the rest.
  struct Rest {
    std::vector<Settled> settled;
    std::vector<size_t> missing;         // should have got a gradient, and have not
    std::optional<size_t> one_too_many;  // got more than expected
  };
  Rest settle_rest(const Flags& requires_grad);
  // The pass is over, or is dropped. What passes that were not synchronised have left behind stays known
  // until the next synchronised one.
  void end_pass();
  // A pass of the other ranks is over, in which this one had no gradients.
  void end_shadow();

  // ---- The learning pass

  bool learned() const { return learned_; }
  // What this rank has seen; missing and one_too_many as above.
  struct Seen {
    Learned learned;
    std::vector<size_t> missing;
    std::optional<size_t> one_too_many;
  };
  Seen seen(const Flags& requires_grad, const Flags& sparse) const;
  // Of a rank that has seen nothing.
  Learned seen_nothing() const;
  // What all have seen is known from now on. Returns the parameters that get a place in the plan, in order.
  std::vector<size_t> adopt(const Learned& agreed);
  // The plan is there.
  void set_learned() { learned_ = true; }

  bool is_sparse(size_t parameter) const { return parameters_[parameter].sparse; }
  void set_sparse(size_t parameter) { parameters_[parameter].sparse = true; }
  bool was_used(size_t parameter) const { return parameters_[parameter].used; }

 private:
  // What is known of a parameter.
  struct Known {
    bool sparse = false;
    bool planned = true;  // false: no rank uses it, in a graph that repeats its first pass
    int expected = 1;     // gradients in a pass
    int arrived = 0;      // in this pass
    bool used = false;    // got a gradient since the last synchronised pass
    bool settled = false;
    bool bystander = false;
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
  bool counting_;                    // this rank has not seen yet how often its parameters are used
  std::vector<size_t> ready_order_;  // seen in the learning pass
};

// Those that were ready, in that order; then the others, last registered first.
std::vector<size_t> complete_order(const std::vector<size_t>& ready, size_t count);

}  // namespace lockstep::reducer
