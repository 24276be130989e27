// Approximates an image by a sum of soft round spots. Faded spots are removed, and spots with the largest
// gradients split in two, so the number of parameters changes during training.
// Shows: parameters that are added and removed.
//
//   build/release/examples/ports/splats
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/splats
//
// Lines marked + are new; "was" shows the line that was there before.
#include <cstdio>
#include <memory>

#include <lockstep/lockstep.h>  // was: #include <torch/torch.h>

#include "digest.h"
#include "pictures.h"

// place [n, 2], size [n], light [n].
struct SpotsImpl : torch::nn::Module {
  explicit SpotsImpl(int64_t count) {
    place = register_parameter("place", torch::rand({count, 2}) * 2 - 1);
    size = register_parameter("size", torch::full({count}, 0.15));
    light = register_parameter("light", torch::full({count}, 0.3));
  }
  // Returns the light at each of the points [m, 2].
  torch::Tensor forward(const torch::Tensor& points) {
    const auto apart = (points.unsqueeze(1) - place).pow(2).sum(2);  // [m, n]
    return torch::exp(apart / (-2 * size.pow(2))).mv(light);
  }
  // Keeps the spots with the indices `chosen`, and adds a slightly shifted copy of those in `split`.
  void become(const torch::Tensor& chosen, const torch::Tensor& split) {
    const torch::NoGradGuard no_grad;
    light.index_put_({split}, light.index({split}) / 2);
    const auto indices = torch::cat({chosen, split});
    place = parameters_["place"] = place.index_select(0, indices).requires_grad_();
    size = parameters_["size"] = size.index_select(0, indices).requires_grad_();
    light = parameters_["light"] = light.index_select(0, indices).requires_grad_();
    place.narrow(0, chosen.size(0), split.size(0)) += 0.05;
  }
  torch::Tensor place, size, light;
};
TORCH_MODULE(Spots);

int main() {
  const auto group = lockstep::init_process_group();  // +
  const auto picture = Pictures(8, "").images()[5].flatten();
  const auto axis = torch::linspace(-1, 1, 28);
  const auto points = torch::stack({axis.repeat({28}), axis.repeat_interleave(28)}, 1);

  lockstep::seed_everything(1);  // was: torch::manual_seed(1);
  Spots model(16);
  lockstep::DistributedDataParallel ddp(model);  // +
  auto optimizer = std::make_unique<torch::optim::Adam>(model->parameters(), 0.01);
  auto pull = torch::zeros({16});

  for (int step = 1; step <= 400; ++step) {
    const auto seen = torch::randint(28 * 28, {256 / group->world_size()}, torch::kLong);
    // was: const auto seen = torch::randint(28 * 28, {256}, torch::kLong);
    optimizer->zero_grad();
    auto loss = torch::mse_loss(ddp(points.index_select(0, seen)), picture.index_select(0, seen));
    // was: auto loss = torch::mse_loss(model(points.index_select(0, seen)), picture.index_select(0, seen));
    loss.backward();
    optimizer->step();
    pull += model->place.grad().norm(2, 1);  // of the averaged gradient: the same on all ranks
    if (step % 50 != 0) continue;

    const torch::NoGradGuard no_grad;
    const auto everywhere = torch::mse_loss(model(points), picture).item<double>();
    if (group->rank() == 0)  // +
      std::printf("step %d  spots %ld  loss %.5f\n", step, model->light.size(0), everywhere);
    if (step > 300) continue;
    const auto kept = torch::nonzero(model->light > 0.1).flatten();
    const auto split = std::get<1>(pull.topk(8));
    if (group->rank() == 0)  // +
      std::printf("%ld spots vanish, %ld split\n", model->light.size(0) - kept.size(0), split.size(0));
    model->become(kept, split);
    ddp.refresh();  // + other tensors, of other sizes
    optimizer = std::make_unique<torch::optim::Adam>(model->parameters(), 0.01);
    pull = torch::zeros({model->light.size(0)});
  }
  std::printf("parameters %s\n", to_hex(digest_of(model->parameters())).c_str());
}
