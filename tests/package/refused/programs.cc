// Wrong programs that a user may write. tests/package/refused/refused compiles them and looks for the
// messages.
#include <memory>

#include <lockstep/lockstep.h>

namespace {

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
struct Mute : torch::nn::Module {};

}  // namespace

void wrong_programs(const std::shared_ptr<lockstep::ProcessGroup>& group, const at::Tensor& x) {
  torch::nn::AnyModule any(torch::nn::Linear(8, 4));
  lockstep::DistributedDataParallel of_any(any, group);

  auto unique = std::make_unique<Net>();
  lockstep::DistributedDataParallel of_unique(unique, group);

  Net net;
  lockstep::DistributedDataParallel of_pointer(&net, group);

  lockstep::DistributedDataParallel of_temporary(Net{}, group, {.static_graph = true});

  const Net constant;
  lockstep::DistributedDataParallel of_const(constant);

  lockstep::DistributedDataParallel of_tensor(x, group);

  lockstep::DistributedDataParallel<torch::nn::Linear>* of_holder = nullptr;
  (void)sizeof(*of_holder);

  lockstep::DistributedDataParallel mute(std::make_shared<Mute>(), group);
  mute(x);
  lockstep::DistributedDataParallel ddp(std::make_shared<Net>(), group);
  ddp.forward(x, "and more");
}
