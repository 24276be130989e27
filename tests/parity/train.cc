// Trains one model with lockstep's DDP and prints the same JSON lines as train.py, which uses PyTorch's: the
// loss of every step, then all parameters and buffers.
//
//   lockstep run --nproc-per-node 2 --log-dir DIR parity_train cnn|transformer|lstm shm|gloo
#include <cstdio>
#include <string>

#include <lockstep/lockstep.h>

#include "parity/formula.h"
#include "parity/models.h"

namespace lockstep::parity {
namespace {

constexpr int kSteps = 10;

void print(const std::string& model, int rank, const char* kind, const std::string& name,
           const torch::Tensor& tensor) {
  std::string shape, values;
  for (const auto size : tensor.sizes()) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  const auto flat = tensor.detach().flatten().to(torch::kDouble);
  for (int64_t i = 0; i < flat.numel(); ++i) {
    char text[32];
    std::snprintf(text, sizeof text, "%s%.9g", i == 0 ? "" : ", ", flat[i].item<double>());
    values += text;
  }
  std::printf("{\"model\": \"%s\", \"rank\": %d, \"%s\": \"%s\", \"shape\": [%s], \"values\": [%s]}\n",
              model.c_str(), rank, kind, name.c_str(), shape.c_str(), values.c_str());
}

template <class Model>
void train(const std::string& name, const std::shared_ptr<ProcessGroup>& group) {
  const int rank = group->rank();
  const auto model = std::make_shared<Model>();
  fill(*model, rank);
  // Small, so that there are several buckets, whose order the first step determines.
  DdpOptions options;
  options.bucket_cap_mb = 0.004;
  options.first_bucket_mb = 0.001;
  DistributedDataParallel ddp(model, group, options);
  const auto optimizer = model->optimizer();

  for (int step = 0; step < kSteps; ++step) {
    const auto [input, target] = Model::batch(kFirstBatch + 2 * (step * group->world_size() + rank));
    optimizer->zero_grad();
    auto loss = torch::cross_entropy_loss(ddp(input), target);
    loss.backward();
    optimizer->step();
    std::printf("{\"model\": \"%s\", \"rank\": %d, \"step\": %d, \"loss\": %.9g}\n", name.c_str(), rank, step,
                loss.template item<double>());
  }
  if (ddp.stats().buckets.size() < 2) throw Error("all gradients travelled in one bucket");

  for (const auto& item : model->named_parameters()) print(name, rank, "parameter", item.key(), item.value());
  for (const auto& item : model->named_buffers()) print(name, rank, "buffer", item.key(), item.value());
}

int run(const std::string& name, const std::string& backend) {
  const auto group = init_process_group({.backend = backend, .timeout = std::chrono::seconds(60)});
  if (group->backend() != backend) throw Error("this is " + group->backend() + ", not " + backend);
  if (name == "cnn") {
    train<Cnn>(name, group);
  } else if (name == "transformer") {
    train<Transformer>(name, group);
  } else if (name == "lstm") {
    train<Lstm>(name, group);
  } else {
    throw UsageError("no such model: " + name);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::parity

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: parity_train cnn|transformer|lstm shm|gloo\n");
    return 2;
  }
  try {
    return lockstep::parity::run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
