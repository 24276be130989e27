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
  uint64_t seed = 1;

  int64_t eval_every = 200;
  std::string snapshots;
  int64_t snapshot_every = 200;
  std::string json;
};

inline void declare(CLI::App& app, Options& options) {
  app.description("Trains a small GPT on text, byte by byte, on as many ranks as it is started with.");
  app.option_defaults()->take_last()->always_capture_default();
  app.get_formatter()->column_width(34);

  app.add_option("--text", options.text, "a file, or a directory of files")->group("What to learn");
  app.add_option("--model", options.model, "its size")
      ->check(CLI::IsMember(size_names()))
      ->group("What to learn");
  app.add_option("--context", options.context, "how many bytes it sees at once")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->group("What to learn");
  app.add_option("--dropout", options.dropout,
                 "each rank drops others, so with it numbers depend on how many there are")
      ->check(CLI::Range(0.0, 0.9))
      ->group("What to learn");

  app.add_option("--steps", options.steps, "of the whole run, also what came before a resume")
      ->check(above_zero())
      ->group("How");
  app.add_option("--global-batch", options.global_batch, "windows in a step, over all ranks")
      ->check(above_zero())
      ->group("How");
  app.add_option("--micro-batch", options.micro_batch,
                 "most windows in one pass of one rank; a share that is larger takes several")
      ->check(above_zero())
      ->group("How");
  app.add_option("--lr", options.learning_rate, "the highest; it falls to a tenth of it")
      ->check(above_zero())
      ->group("How");
  app.add_option("--warmup", options.warmup, "steps in which the learning rate rises")
      ->check(not_negative())
      ->group("How");
  app.add_option("--weight-decay", options.weight_decay, "of the matrices")
      ->check(not_negative())
      ->group("How");
  app.add_option("--clip", options.clip, "the greatest norm of all gradients together")
      ->check(above_zero())
      ->group("How");
  app.add_flag("--bf16-hook", options.bf16_hook, "gradients travel as bfloat16: half the bytes")
      ->group("How");
  app.add_option("--seed", options.seed, "of the weights and of the order of the text")->group("How");

  app.add_option("--eval-every", options.eval_every, "steps between two looks at the held-out text")
      ->check(above_zero())
      ->group("What remains");
  app.add_option("--snapshots", options.snapshots,
                 "a directory; a run that is started again goes on from its newest snapshot")
      ->group("What remains");
  app.add_option("--snapshot-every", options.snapshot_every, "steps between two snapshots")
      ->check(above_zero())
      ->group("What remains");
  app.add_option("--json", options.json,
                 "a file to which rank 0 writes the loss of every step, as lines of JSON")
      ->group("What remains");
  app.footer(
      "\nThe last tenth of the text is held out: the model never learns from it.\n"
      "Text from a snapshot: mingpt_sample DIRECTORY");
}

}  // namespace mingpt
