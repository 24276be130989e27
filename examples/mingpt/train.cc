// Trains a small GPT on text. The same program runs on one rank and on many.
//
//   mingpt_train --snapshots run                                              one process
//   lockstep run --nproc-per-node 2 mingpt_train --snapshots run              two, on one machine
//   lockstep run --nnodes 2 --node-rank 0 --master-addr HOST --nproc-per-node 2 mingpt_train --snapshots run
//   lockstep run --nnodes 2 --node-rank 1 --master-addr HOST --nproc-per-node 2 mingpt_train --snapshots run
//                                                                             four, on two machines
//   mingpt_sample run --prompt "You may"                                      generates text
//
// If it is killed and restarted, with the same or another number of ranks, it resumes from the newest
// snapshot. The size and contents of the global batch do not depend on the number of ranks, so neither do the
// losses, except for rounding.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>
#include <lockstep/sampler.h>
#include <lockstep/snapshot.h>
#include <lockstep/train.h>

#include "batch_plan.h"
#include "loss_log.h"
#include "model.h"
#include "optimizer.h"
#include "options.h"
#include "sizes.h"
#include "text.h"

namespace mingpt {
namespace {

using lockstep::DistributedSampler;
using Ddp = lockstep::DistributedDataParallel<Gpt>;

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& windows) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), windows.slice(1, 1).flatten());
}
torch::Tensor input_of(const torch::Tensor& windows) { return windows.slice(1, 0, -1); }

// Returns this rank's share of the samples of the next global batch. An incomplete batch at the end of an
// epoch is skipped.
std::vector<size_t> next_share(DistributedSampler& sampler, size_t share) {
  auto samples = sampler.next(share);
  if (samples && samples->size() == share) return *samples;
  sampler.set_epoch(sampler.epoch() + 1);
  sampler.reset();
  return sampler.next(share).value();
}

// Computes the gradients of one step, averaged over all ranks, and returns the loss over the global batch.
double accumulate(Ddp& ddp, const Windows& text, const std::vector<size_t>& samples, const BatchPlan& plan) {
  auto loss = torch::zeros({});
  for (int64_t pass = 0; pass < plan.passes; ++pass) {
    const auto windows = text.at(samples.data() + pass * plan.rows, plan.rows);
    ddp.set_gradient_sync(pass + 1 == plan.passes);  // the last pass sends the accumulated gradients
    auto part = loss_of(ddp(input_of(windows)), windows) / plan.passes;
    part.backward();
    loss += part.detach();
  }
  ddp.group()->all_reduce(loss, lockstep::ReduceOp::Avg);
  return loss.item<double>();
}

// Evaluates every window exactly once, on one of the ranks. Each rank's mean is weighted by its windows.
double evaluate(Ddp& ddp, const Windows& text, int64_t rows) {
  torch::NoGradGuard no_grad;
  ddp.eval();
  const DistributedSampler sampler(text.size(), ddp.group(), {.shuffle = false, .exact = true});
  const auto samples = sampler.indices();
  lockstep::Average loss;
  for (size_t begin = 0; begin < samples.size(); begin += rows) {
    const auto count = std::min<size_t>(rows, samples.size() - begin);
    const auto windows = text.at(samples.data() + begin, count);
    loss.add(loss_of(ddp->forward(input_of(windows)), windows), static_cast<int64_t>(count));
  }
  ddp.train();
  return loss.all_reduce(ddp.group());
}

void check_length(const Windows& training, const Windows& held_out, const Options& options) {
  const auto batch = static_cast<size_t>(options.global_batch);
  if (training.size() >= batch && held_out.size() > 0) return;
  throw lockstep::UsageError(
      "the text " + options.text + " is too short: it has " + std::to_string(training.size()) +
      " windows for training and " + std::to_string(held_out.size()) + " held out, with a context of " +
      std::to_string(options.context) + " bytes, and a step takes " + std::to_string(batch) +
      "\nhint: use more text (--text), or lower --context or --global-batch");
}

int train(const Options& options) {
  const auto group = lockstep::init_process_group();
  const bool speaks = group->rank() == 0;
  const auto plan = plan_batch(options.global_batch, group->world_size(), options.micro_batch);

  const auto text = share_text(speaks ? read_text(options.text) : "", *group);
  const auto learnt = text.numel() - text.numel() / 10;
  const Windows training(text.slice(0, 0, learnt), options.context, 1);
  const Windows held_out(text.slice(0, learnt), options.context, options.context);
  check_length(training, held_out, options);

  lockstep::seed_everything(options.seed, group);
  const auto model = std::make_shared<Gpt>(config_of(options.model, options.context, options.dropout));
  Ddp ddp(model, group, {.share_parameters = options.share_parameters});
  if (options.bf16_hook) ddp.register_comm_hook(lockstep::hooks::bf16_compress());
  const Optimizer optimizer(ddp, *model, {.weight_decay = options.weight_decay}, options.sharded);
  auto scheduler = make_scheduler(*optimizer, {.peak = options.learning_rate,
                                               .floor = options.learning_rate / 10,
                                               .warmup = options.warmup,
                                               .steps = options.steps});
  DistributedSampler sampler(training.size(), group, {.seed = options.seed, .drop_last = true});

  std::optional<lockstep::Snapshots> snapshots;
  lockstep::Position start;
  if (!options.snapshots.empty()) {
    snapshots.emplace(options.snapshots, group);
    start = snapshots->resume(ddp, *optimizer, sampler, scheduler);
  }
  sampler.reset();
  LossLog log(speaks ? options.json : "", start.step > 0);
  if (speaks) {
    int64_t parameters = 0;
    for (const auto& parameter : model->parameters()) parameters += parameter.numel();
    std::printf("%s: %ld parameters; %ld bytes of text; %s\n", options.model.c_str(), parameters,
                text.numel(), plan.text().c_str());
    if (start.step > 0) {
      std::printf("resuming after step %ld%s\n", start.step,
                  start.step < options.steps ? "" : ", which was the last: use a larger --steps to continue");
    }
    std::fflush(stdout);
  }

  using Clock = std::chrono::steady_clock;
  lockstep::Progress bar(group,
                         {.steps = options.steps - start.step, .label = options.model, .unit = "tokens"});
  std::chrono::duration<double> busy{};
  int64_t tokens = 0;
  for (auto step = start.step; step < options.steps; ++step) {
    const auto begin = Clock::now();
    optimizer->zero_grad();
    const auto loss = accumulate(ddp, training, next_share(sampler, plan.share()), plan);
    // A non-finite gradient stops the run here, before it reaches the weights and a snapshot.
    optimizer.clip(options.clip);
    optimizer->step();
    scheduler.step();
    busy += Clock::now() - begin;
    tokens += plan.global() * options.context;

    const auto done = step + 1;
    bar.step(loss, plan.share() * options.context);
    log.add(done, "loss", loss);
    if (done % options.eval_every == 0 || done == options.steps) {
      const auto held_out_loss = evaluate(ddp, held_out, plan.rows);
      if (speaks) {
        bar.clear();
        std::printf("step %5ld  loss %.4f  held out %.4f  %.0f tokens/s\n", done, loss, held_out_loss,
                    static_cast<double>(tokens) / busy.count());
        std::fflush(stdout);
      }
      log.add(done, "held_out", held_out_loss);
      busy = {};
      tokens = 0;
    }
    if (snapshots && (done % options.snapshot_every == 0 || done == options.steps)) {
      log.flush();  // before the snapshot: these steps are not repeated after it
      snapshots->save(ddp, *optimizer, sampler, scheduler,
                      {.epoch = sampler.epoch(), .step = done, .values = values_of(model->config)});
    }
  }
  bar.finish();
  log.flush();
  return 0;
}

}  // namespace
}  // namespace mingpt

int main(int argc, char** argv) {
  mingpt::Options options;
  CLI::App app;
  mingpt::declare(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    return mingpt::train(options);
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(error.kind()).c_str(), error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}
