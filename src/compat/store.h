// c10d::Store, to derive from.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep::compat {

class Store : public c10d::Store {
 public:
  using c10d::Store::Store;

  // Late versions of LibTorch 2 ask for it in these words; for the others it is a function like any other.
  virtual c10::intrusive_ptr<c10d::Store> clone() { return copy(); }

 private:
  virtual c10::intrusive_ptr<c10d::Store> copy() const = 0;
};

}  // namespace lockstep::compat
