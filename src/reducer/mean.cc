#include <ATen/ATen.h>

#include <lockstep/mean.h>

namespace lockstep {

void Mean::finish(const at::Tensor& reduced) const {
  const auto dtype = reduced.scalar_type();
  if (!divides_before(dtype) && !divides_within(dtype)) divide(reduced);
}

at::Tensor Mean::divide(const at::Tensor& sum) const { return sum.div_(participants_); }

at::Tensor Mean::divided(const at::Tensor& sum) const { return sum / participants_; }

}  // namespace lockstep
