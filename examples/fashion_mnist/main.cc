// Trains a convolutional net on Fashion-MNIST. The same program runs as one process and as many:
//
//   fashion_mnist                                        one process
//   lockstep run --nproc-per-node 2 fashion_mnist        two processes with the same global batch
//   lockstep run … fashion_mnist --snapshots run1        saves after every epoch; resumes when restarted
//
// The batch is divided among the ranks, so any number of ranks takes the same steps, up to rounding.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <optional>

#include <lockstep/lockstep.h>
#include <lockstep/snapshot.h>
#include <lockstep/train.h>

#include "digest.h"
#include "images.h"
#include "model.h"
#include "options.h"
#include "record.h"

namespace fashion_mnist {
namespace {

constexpr uint64_t kSeed = 7;
using Ddp = lockstep::DistributedDataParallel<NetImpl>;
using Group = std::shared_ptr<lockstep::ProcessGroup>;

// Returns the accuracy. Each rank evaluates its part of the images; every image is evaluated once.
double evaluate(Ddp& ddp, const Images& images, const Group& group) {
  const torch::NoGradGuard no_grad;
  ddp.eval();
  const auto loader = lockstep::make_data_loader(images, 500, group, {.shuffle = false, .exact = true});
  lockstep::Average accuracy;
  for (auto& batch : *loader) {
    accuracy.add_sum(ddp->forward(batch.data).argmax(1).eq(batch.target).sum(), batch.data.size(0));
  }
  ddp.train();
  return accuracy.all_reduce(group);
}

// Returns one digest per rank. Ranks with equal parameters have equal digests.
std::vector<std::string> hash_replicas(const Ddp& ddp, lockstep::ProcessGroup& group) {
  const auto mine = torch::tensor(static_cast<int64_t>(digest_of(ddp.parameters())));
  std::vector<std::string> hashes;
  for (const auto& each : group.all_gather(mine)) {
    hashes.push_back(to_hex(static_cast<uint64_t>(each.item<int64_t>())));
  }
  return hashes;
}

void print_summary(const Record& record) {
  double seconds = 0;
  for (const auto& epoch : record.epochs) seconds += epoch.seconds;
  std::printf("%d process%s of %d thread%s, backend %s: %.1f s of training\n", record.world_size,
              record.world_size == 1 ? "" : "es", record.threads, record.threads == 1 ? "" : "s",
              record.backend.c_str(), seconds);
  if (record.world_size > 1 && seconds > 0) {
    std::printf("communication: in progress for %.1f %% of that time, blocking computation for %.1f %%\n",
                100 * record.stats.total_communication / seconds, 100 * record.stats.total_exposed / seconds);
  }
  std::printf("replicas identical: yes\n");
  for (size_t rank = 0; rank < record.replicas.size(); ++rank) {
    std::printf("  rank %zu has %s\n", rank, record.replicas[rank].c_str());
  }
  if (!record.snapshot.empty()) std::printf("snapshot: %s\n", record.snapshot.c_str());
}

void train(const Options& options) {
  const auto group = lockstep::init_process_group();
  const bool speaks = group->rank() == 0;
  if (options.batch % group->world_size() != 0) {
    throw lockstep::UsageError("a batch of " + std::to_string(options.batch) + " is not divisible by " +
                               std::to_string(group->world_size()) + " ranks\nhint: choose another --batch");
  }
  const Images images(options.data, "train", options.limit), test_images(options.data, "t10k");

  lockstep::seed_everything(kSeed, group);
  const Net net;
  // The net is small: with the usual bucket size of megabytes, all gradients would be sent at the end, in one
  // bucket.
  Ddp ddp(net, group, {.bucket_cap_mb = 0.25, .first_bucket_mb = 0.05});
  torch::optim::Adam optimizer(ddp.parameters(), options.lr);
  const int64_t share = options.batch / group->world_size();
  const auto loader = lockstep::make_data_loader(images, share, group, {.seed = kSeed});
  const auto steps = (static_cast<int64_t>(loader->sampler().size()) + share - 1) / share;

  std::optional<lockstep::Snapshots> snapshots;
  lockstep::Position start;
  if (!options.snapshots.empty()) {
    snapshots.emplace(options.snapshots, group);
    start = snapshots->resume(ddp, optimizer, *loader);
  }
  if (speaks && start.epoch > 0) {
    std::printf("resuming after epoch %lld of %s\n", static_cast<long long>(start.epoch),
                options.snapshots.c_str());
  }

  Record record{.command = options.command,
                .world_size = group->world_size(),
                .threads = at::get_num_threads(),
                .backend = group->backend(),
                .batch = options.batch,
                .samples = static_cast<int64_t>(*images.size())};
  for (const auto& parameter : ddp.parameters()) record.parameters += parameter.numel();

  for (auto epoch = start.epoch; epoch < options.epochs; ++epoch) {
    const auto label = "epoch " + std::to_string(epoch + 1) + "/" + std::to_string(options.epochs);
    lockstep::Progress bar(group, {.steps = steps, .label = label, .unit = "images"});
    std::vector<lockstep::DdpStats> passes;
    auto losses = torch::zeros({steps}, torch::kDouble);
    int64_t step = 0;
    const auto begin = std::chrono::steady_clock::now();
    const auto cpu_begin = std::clock();
    loader->set_epoch(epoch);
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const auto loss = torch::cross_entropy_loss(ddp(batch.data), batch.target);
      loss.backward();  // gradients are averaged when this returns
      optimizer.step();

      losses[step++] = loss.detach();
      passes.push_back(ddp.stats());
      bar.step(loss.detach(), batch.data.size(0));
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    record.cpu_seconds += static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
    bar.finish();

    group->all_reduce(losses, lockstep::ReduceOp::Avg);
    record.losses.insert(record.losses.end(), losses.data_ptr<double>(), losses.data_ptr<double>() + steps);
    record.epochs.push_back({.number = epoch + 1,
                             .seconds = took.count(),
                             .loss = losses.mean().item<double>(),
                             .accuracy = evaluate(ddp, test_images, group)});
    const auto middle = passes.begin() + static_cast<int64_t>(passes.size() / 2);
    std::nth_element(passes.begin(), middle, passes.end(),
                     [](const auto& a, const auto& b) { return a.backward < b.backward; });
    record.typical_pass = *middle;
    if (snapshots) snapshots->save(ddp, optimizer, *loader, {.epoch = epoch + 1});
    if (speaks) {
      std::printf("%s: loss %.4f, test accuracy %.2f %%, %.1f s\n", label.c_str(), record.epochs.back().loss,
                  100 * record.epochs.back().accuracy, took.count());
      std::fflush(stdout);
    }
  }
  if (speaks && record.epochs.empty())
    std::printf("nothing left to train: use a larger --epochs to continue\n");

  ddp.verify_replicas();  // throws if they differ, and names the parameter
  record.replicas = hash_replicas(ddp, *group);
  record.stats = ddp.stats();
  if (!speaks) return;
  if (snapshots && snapshots->latest()) record.snapshot = snapshots->latest()->path;
  print_summary(record);
  if (!options.json.empty()) write(record, options.json);
}

}  // namespace
}  // namespace fashion_mnist

int main(int argc, char** argv) {
  const auto options = fashion_mnist::parse(argc, argv);
  try {
    fashion_mnist::train(options);
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "fashion_mnist: %s: %s\n", std::string(error.kind()).c_str(), error.what());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fashion_mnist: %s\n", error.what());
    return 1;
  }
}
