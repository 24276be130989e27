// A base class for stores: c10d::Store in every version of LibTorch.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep::compat {

class Store : public c10d::Store {
 public:
  using c10d::Store::Store;

  // Late versions of LibTorch 2 declare it in c10d::Store; in the others it is an ordinary function.
  virtual c10::intrusive_ptr<c10d::Store> clone() { return copy(); }

 private:
  virtual c10::intrusive_ptr<c10d::Store> copy() const = 0;
};

}  // namespace lockstep::compat
