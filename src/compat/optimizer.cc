#include "compat/optimizer.h"

#include <sstream>

namespace lockstep::compat {

namespace {

template <class Key>
Key key_of(const void* parameter) {
  if constexpr (std::is_pointer_v<Key>) {
    return const_cast<Key>(parameter);
  } else {
    std::ostringstream text;
    text << parameter;
    return text.str();
  }
}

}  // namespace

OptimizerStates::key_type state_key(const at::Tensor& parameter) {
  return key_of<OptimizerStates::key_type>(parameter.unsafeGetTensorImpl());
}

}  // namespace lockstep::compat
