// c10d::ProcessGroup: a backend in LibTorch 1; since 2, it has one for each type of device.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <lockstep/c10d.h>

#if TORCH_VERSION_MAJOR >= 2

namespace lockstep::detail {

c10::intrusive_ptr<c10d_backend> cpu_backend_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return group ? group->getBackend(c10::DeviceType::CPU) : nullptr;
}

}  // namespace lockstep::detail

#endif
