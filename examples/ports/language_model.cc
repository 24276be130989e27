// A language model: an LSTM that reads text letter by letter. The text is divided into rows that are read in
// parallel, piece by piece; the state after one piece is the initial state of the next.
// Shows: truncated backpropagation through time, a state that stays with its rows, gradient clipping.
//
//   build/release/examples/ports/language_model
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/language_model
//
// Lines marked + are new; "was" shows the line that was there before.
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include <lockstep/lockstep.h>  // was: #include <torch/torch.h>

#include "digest.h"

using State = std::tuple<torch::Tensor, torch::Tensor>;

// Sentences of four words, each from its own list. The same on every rank.
torch::Tensor write_text(int64_t length) {
  const std::array<std::array<const char*, 4>, 4> words{{{"every ", "one ", "the last ", "no "},
                                                         {"rank ", "process ", "gradient ", "bucket "},
                                                         {"waits for ", "follows ", "sends ", "repeats "},
                                                         {"the others. ", "rank zero. ", "a sum. ", "it. "}}};
  std::string text;
  for (unsigned i = 0, random = 1; text.size() < static_cast<size_t>(length); ++i) {
    random = random * 1664525U + 1013904223U;
    text += words[i % 4][random >> 30];
  }
  auto letters = torch::empty({length}, torch::kLong);
  std::copy_n(text.begin(), length, letters.data_ptr<int64_t>());
  return letters;
}

struct ReaderImpl : torch::nn::Module {
  torch::nn::Embedding letters{register_module("letters", torch::nn::Embedding(128, 16))};
  torch::nn::LSTM lstm{
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(16, 64).batch_first(true)))};
  torch::nn::Linear next{register_module("next", torch::nn::Linear(64, 128))};

  std::tuple<torch::Tensor, State> forward(const torch::Tensor& text, const State& state) {
    auto [seen, after] = lstm(letters(text), state);
    return {next(seen), after};
  }
};
TORCH_MODULE(Reader);

int main() {
  const int64_t rows = 16, piece = 32;
  const auto group = lockstep::init_process_group();  // +
  auto text = write_text(rows * (piece * 40 + 1)).view({rows, -1});
  text = text.chunk(group->world_size())[group->rank()];  // + this rank's rows

  lockstep::seed_everything(1);  // was: torch::manual_seed(1);
  Reader model;
  lockstep::DistributedDataParallel ddp(model);  // +
  torch::optim::Adam optimizer(model->parameters(), 5e-3);

  for (int epoch = 1; epoch <= 4; ++epoch) {
    // The state of this rank's rows, which is never exchanged.
    auto hidden = torch::zeros({1, text.size(0), 64}), cell = torch::zeros({1, text.size(0), 64});
    auto sum = torch::zeros({1});
    int steps = 0;
    for (int64_t start = 0; start + piece < text.size(1); start += piece, ++steps) {
      const auto here = text.narrow(1, start, piece), following = text.narrow(1, start + 1, piece);
      optimizer.zero_grad();
      auto [output, state] = ddp(here, State(hidden, cell));
      // was: auto [output, state] = model(here, State(hidden, cell));
      auto loss = torch::cross_entropy_loss(output.flatten(0, 1), following.flatten());
      loss.backward();
      // The averaged gradients are the same on all ranks, and so is the clipping.
      torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
      optimizer.step();
      hidden = std::get<0>(state).detach();  // backward stops here
      cell = std::get<1>(state).detach();
      sum += loss.detach();
    }
    group->all_reduce(sum, lockstep::ReduceOp::Avg);  // +
    if (group->rank() == 0)                           // +
      std::printf("epoch %d  loss %.4f\n", epoch, sum.item<double>() / steps);
  }
  std::printf("parameters %s\n", to_hex(digest_of(model->parameters())).c_str());
}
