// Trains the GPT of examples/mingpt and writes the same values as mingpt.py, which uses PyTorch. There, one
// process computes each batch at once. Here, the batch is split among the ranks, and each computes its part
// in two passes. Only rank 0 writes.
//
//   lockstep run --nproc-per-node 2 --log-dir DIR parity_mingpt
#include <cstdio>
#include <string>

#include <lockstep/lockstep.h>
#include <lockstep/train.h>

#include "mingpt/model.h"
#include "mingpt/optimizer.h"
#include "parity/formula.h"

namespace lockstep::parity {
namespace {

// The same as in mingpt.py.
constexpr mingpt::Config kConfig{.layers = 2, .heads = 2, .width = 32, .vocabulary = 40, .context = 16};
constexpr int64_t kBatch = 8, kPasses = 2;
constexpr mingpt::Schedule kSchedule{.peak = 1e-2, .floor = 1e-3, .warmup = 3, .steps = 10};
constexpr double kClip = 1;

std::string list(const torch::Tensor& numbers, const char* format) {
  std::string text;
  for (const auto* number = numbers.data_ptr<double>();
       number != numbers.data_ptr<double>() + numbers.numel(); ++number) {
    char one[32];
    std::snprintf(one, sizeof one, format, *number);
    text += (text.empty() ? "" : ", ") + std::string(one);
  }
  return "[" + text + "]";
}

void train(const std::shared_ptr<ProcessGroup>& group) {
  const auto model = std::make_shared<mingpt::Gpt>(kConfig);
  fill(*model, group->rank());
  {
    torch::NoGradGuard no_grad;  // scales the weights so that the two variants of GELU differ
    for (const auto& module : *model->blocks) {
      auto* block = module->as<mingpt::Block>();
      block->expand->weight.mul_(4);
      block->project->weight.mul_(4);
    }
  }
  DdpOptions options;
  options.bucket_cap_mb = 0.02;
  options.first_bucket_mb = 0.002;
  DistributedDataParallel ddp(model, group, options);
  const mingpt::Optimizer optimizer(ddp, *model, {.eps = 1e-3, .weight_decay = 0.1}, /*divide=*/false);
  auto scheduler = mingpt::make_scheduler(*optimizer, kSchedule);

  const auto rows = kBatch / group->world_size() / kPasses;
  for (int64_t step = 0; step < kSchedule.steps; ++step) {
    const auto batch = whole(kFirstBatch + step, {kBatch, kConfig.context + 1}, kConfig.vocabulary);
    optimizer->zero_grad();
    auto mean = torch::zeros({});
    for (int64_t pass = 0; pass < kPasses; ++pass) {
      const auto windows = batch.narrow(0, (group->rank() * kPasses + pass) * rows, rows);
      ddp.set_gradient_sync(pass + 1 == kPasses);
      auto loss = torch::cross_entropy_loss(ddp(windows.slice(1, 0, -1)).flatten(0, 1),
                                            windows.slice(1, 1).flatten()) /
                  kPasses;
      loss.backward();
      mean += loss.detach();
    }
    clip_grad_norm_(ddp.parameters(), kClip);
    optimizer->step();
    scheduler.step();
    group->all_reduce(mean, ReduceOp::Avg);
    if (group->rank() == 0) {
      std::printf("{\"model\": \"mingpt\", \"rank\": 0, \"step\": %ld, \"loss\": %.9g}\n", step,
                  mean.item<double>());
    }
  }
  if (group->world_size() > 1 && ddp.stats().buckets.size() < 2) {
    throw Error("all gradients travelled in one bucket");
  }
  ddp.verify_replicas();
  if (group->rank() != 0) return;
  for (const auto& item : model->named_parameters()) {
    const auto& value = item.value();
    std::printf(
        "{\"model\": \"mingpt\", \"rank\": 0, \"parameter\": \"%s\", \"shape\": %s, \"values\": %s}\n",
        item.key().c_str(), list(torch::tensor(value.sizes(), torch::kDouble), "%.0f").c_str(),
        list(value.detach().flatten().to(torch::kDouble), "%.9g").c_str());
  }
}

}  // namespace
}  // namespace lockstep::parity

int main() {
  try {
    lockstep::parity::train(lockstep::init_process_group({.timeout = std::chrono::seconds(60)}));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
