// The wrapper that a reducer works for, as far as the reducer asks it.
#pragma once

#include <string>
#include <vector>

namespace lockstep::reducer {

class Owner {
 public:
  // A pass has begun whose forward the wrapper has not seen: the module was called past it (ddp->forward).
  // Whether its gradients are to be averaged.
  virtual bool syncs_bypassed() const = 0;
  // A pass of this rank's own has ended that was synchronised (its gradients are averaged), or bypassed the
  // wrapper.
  virtual void after_pass(bool synchronised, bool bypassed) = 0;
  // Of these parameters, those that the module has no more, or has another tensor for.
  virtual std::vector<std::string> replaced(const std::vector<std::string>& names) const = 0;

 protected:
  ~Owner() = default;
};

}  // namespace lockstep::reducer
