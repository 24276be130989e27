// The wrapper that owns a reducer, as the reducer sees it.
#pragma once

#include <string>
#include <vector>

namespace lockstep::reducer {

class Owner {
 public:
  // Called when a pass begins whose forward has bypassed the wrapper (ddp->forward). Returns whether its
  // gradients are to be averaged.
  virtual bool syncs_bypassed() const = 0;
  // Called at the end of a pass of this rank that was synchronised (its gradients are averaged) or bypassed
  // the wrapper.
  virtual void after_pass(bool synchronised, bool bypassed) = 0;
  // Returns those of these parameters that the module no longer has, or has replaced by other tensors.
  virtual std::vector<std::string> replaced(const std::vector<std::string>& names) const = 0;

 protected:
  ~Owner() = default;
};

}  // namespace lockstep::reducer
