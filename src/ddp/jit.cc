#include <lockstep/error.h>
#include <lockstep/jit.h>

namespace lockstep::detail {

ModelView view_of(const std::shared_ptr<torch::jit::Module>& module) {
  if (!module) throw UsageError("DistributedDataParallel was given no module (a null pointer)");
  ModelView view;
  view.present_parameters = [module] {
    NamedTensors parameters;
    for (const auto& parameter : module->named_parameters()) {
      parameters.emplace_back(parameter.name, parameter.value);
    }
    return parameters;
  };
  view.parameters = view.present_parameters();
  view.buffers = [module] {
    NamedTensors buffers;
    for (const auto& buffer : module->named_buffers()) buffers.emplace_back(buffer.name, buffer.value);
    return buffers;
  };
  view.is_training = [module] { return module->is_training(); };
  return view;
}

}  // namespace lockstep::detail
