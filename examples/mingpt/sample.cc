// Generates text with a model that mingpt_train has trained, or is still training.
//
//   mingpt_sample run --prompt "You may" --bytes 400 --temperature 0.8 --top-k 20
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <lockstep/lockstep.h>
#include <lockstep/snapshot.h>

#include "checks.h"
#include "model.h"
#include "sizes.h"

namespace mingpt {
namespace {

struct Options {
  std::string snapshots;
  std::string prompt = "\n";
  int64_t bytes = 500;
  double temperature = 0.8;
  int64_t top_k = 0;
  uint64_t seed = 1;
};

void declare(CLI::App& app, Options& options) {
  app.description("Generates text with a model that mingpt_train has trained.");
  app.option_defaults()->take_last()->always_capture_default();
  app.get_formatter()->column_width(34);
  app.add_option("directory", options.snapshots, "the directory passed to mingpt_train as --snapshots")
      ->required();
  app.add_option("--prompt", options.prompt, "start of the text")->default_str("a newline");
  app.add_option("--bytes", options.bytes, "number of bytes to generate")->check(not_negative());
  app.add_option("--temperature", options.temperature,
                 "below 1: more predictable text; 0: always the most likely byte")
      ->check(not_negative());
  app.add_option("--top-k", options.top_k, "choose among the K most likely bytes; 0: among all")
      ->check(not_negative());
  app.add_option("--seed", options.seed, "the same seed generates the same text");
}

std::shared_ptr<Gpt> load(const std::string& directory) {
  lockstep::Snapshots snapshots(directory, lockstep::init_process_group(), {.read_only = true});
  const auto latest = snapshots.latest();
  if (!latest) {
    throw lockstep::UsageError("there is no snapshot in " + directory +
                               "\nhint: train one with mingpt_train --snapshots " + directory);
  }
  const auto model = std::make_shared<Gpt>(config_of(latest->position.values));
  const auto position = snapshots.resume(model);
  std::fprintf(stderr, "%s: step %ld\n", latest->path.filename().c_str(), position.step);
  model->eval();
  return model;
}

// Chooses a byte by the logits of the last position: [vocabulary].
int64_t choose(torch::Tensor logits, const Options& options) {
  if (options.temperature < 1e-6) return logits.argmax().item<int64_t>();
  if (options.top_k > 0 && options.top_k < logits.numel()) {
    const auto least = std::get<0>(logits.topk(options.top_k)).min();
    logits = logits.masked_fill(logits < least, -std::numeric_limits<float>::infinity());
  }
  return torch::multinomial(torch::softmax(logits / options.temperature, 0), 1).item<int64_t>();
}

void write(Gpt& model, const Options& options) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(options.seed);  // after resume(), which restores the training's random state
  const auto& prompt = options.prompt.empty() ? std::string("\n") : options.prompt;
  std::vector<int64_t> text;
  for (const char byte : prompt) text.push_back(static_cast<unsigned char>(byte));
  std::fwrite(prompt.data(), 1, prompt.size(), stdout);

  const auto context = static_cast<size_t>(model.config.context);
  for (int64_t i = 0; i < options.bytes; ++i) {
    const auto seen = std::min(text.size(), context);
    const auto input = torch::tensor(std::vector<int64_t>(text.end() - seen, text.end())).unsqueeze(0);
    text.push_back(choose(model.forward(input)[0][-1], options));
    std::putchar(static_cast<int>(text.back()));
    std::fflush(stdout);
  }
  std::putchar('\n');
}

}  // namespace
}  // namespace mingpt

int main(int argc, char** argv) {
  mingpt::Options options;
  CLI::App app;
  mingpt::declare(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    mingpt::write(*mingpt::load(options.snapshots), options);
    return 0;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(error.kind()).c_str(), error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}
