// The command line of mingpt_train.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "checks.h"
#include "sizes.h"

namespace mingpt {

struct Options {
  std::string text = "/usr/share/common-licenses";
  std::string model = "nano";
  int64_t context = 128;
  double dropout = 0;

  int64_t steps = 2000;
  int64_t global_batch = 32;
  int64_t micro_batch = 16;
  double learning_rate = 3e-3;
  int64_t warmup = 100;
  double weight_decay = 0.1;
  double clip = 1;
  bool bf16_hook = false;
  bool sharded = false;
  bool share_parameters = false;
  uint64_t seed = 1;

  int64_t eval_every = 200;
  std::string snapshots;
  int64_t snapshot_every = 200;
  std::string json;
};

inline void declare(CLI::App& app, Options& options) {
  app.description("Trains a small GPT on text, byte by byte, on one or more ranks.");
  app.option_defaults()->take_last()->always_capture_default();
  app.get_formatter()->column_width(34);

  app.add_option("--text", options.text, "text file, or directory of text files")->group("Model and data");
  app.add_option("--model", options.model, "model size")
      ->check(CLI::IsMember(size_names()))
      ->group("Model and data");
  app.add_option("--context", options.context, "context length in bytes")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->group("Model and data");
  app.add_option("--dropout", options.dropout,
                 "dropout probability; ranks draw different numbers, so losses depend on how many there are")
      ->check(CLI::Range(0.0, 0.9))
      ->group("Model and data");

  app.add_option("--steps", options.steps,
                 "number of steps of the whole run, including those before a resume")
      ->check(above_zero())
      ->group("Training");
  app.add_option("--global-batch", options.global_batch, "windows per step, over all ranks")
      ->check(above_zero())
      ->group("Training");
  app.add_option("--micro-batch", options.micro_batch,
                 "maximum number of windows per pass of a rank; a larger share takes several passes")
      ->check(above_zero())
      ->group("Training");
  app.add_option("--lr", options.learning_rate, "peak learning rate; it decays to a tenth of it")
      ->check(above_zero())
      ->group("Training");
  app.add_option("--warmup", options.warmup, "number of steps in which the learning rate rises")
      ->check(not_negative())
      ->group("Training");
  app.add_option("--weight-decay", options.weight_decay, "weight decay of the matrices")
      ->check(not_negative())
      ->group("Training");
  app.add_option("--clip", options.clip, "maximum norm of all gradients together")
      ->check(above_zero())
      ->group("Training");
  app.add_flag("--bf16-hook", options.bf16_hook, "send gradients as bfloat16: half the bytes")
      ->group("Training");
  auto* const sharded =
      app.add_flag("--sharded", options.sharded, "divide the work and the state of AdamW among the ranks")
          ->group("Training");
  app.add_flag("--share-parameters", options.share_parameters,
               "with --sharded: one copy of the parameters for all ranks of a machine")
      ->needs(sharded)
      ->group("Training");
  app.add_option("--seed", options.seed, "seed of the weights and of the order of the text")
      ->group("Training");

  app.add_option("--eval-every", options.eval_every, "steps between evaluations on the held-out text")
      ->check(above_zero())
      ->group("Output");
  app.add_option("--snapshots", options.snapshots,
                 "directory for snapshots; a restarted run resumes from the newest one")
      ->group("Output");
  app.add_option("--snapshot-every", options.snapshot_every, "steps between snapshots")
      ->check(above_zero())
      ->group("Output");
  app.add_option("--json", options.json,
                 "file to which rank 0 writes the loss of every step, as lines of JSON")
      ->group("Output");
  app.footer(
      "\nThe last tenth of the text is held out: the model is not trained on it.\n"
      "To generate text from a snapshot: mingpt_sample DIRECTORY");
}

}  // namespace mingpt
