// A dataset in MNIST's format, kept in memory as bytes. A batch is selected and converted to floats in one
// operation, which is many times faster than stacking single images.
#pragma once

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <lockstep/error.h>

#include "idx.h"

namespace fashion_mnist {

constexpr int64_t kClasses = 10;

// Copies share the memory.
class Images : public torch::data::datasets::BatchDataset<Images, torch::data::Example<>> {
 public:
  // `part` is "train" or "t10k". Reads at most the first `limit` images.
  Images(const std::filesystem::path& folder, const std::string& part,
         int64_t limit = std::numeric_limits<int64_t>::max())
      : images_(IdxFile(folder / (part + "-images-idx3-ubyte")).read(3)),
        labels_(IdxFile(folder / (part + "-labels-idx1-ubyte")).read(1)) {
    const auto of = " of " + part + " in " + folder.string();
    if (images_.size(0) != labels_.size(0) || images_.numel() == 0) {
      throw lockstep::UsageError("there are " + std::to_string(images_.size(0)) + " images and " +
                                 std::to_string(labels_.size(0)) + " labels" + of);
    }
    if (images_.size(1) != 28 || images_.size(2) != 28) {
      throw lockstep::UsageError("the images" + of + " are not 28 by 28");
    }
    if (labels_.max().item<int64_t>() >= kClasses) throw lockstep::UsageError("a label" + of + " is above 9");
    const auto count = std::min(limit, images_.size(0));
    images_ = images_.narrow(0, 0, count).unsqueeze(1);
    labels_ = labels_.narrow(0, 0, count).to(torch::kLong);
  }

  torch::optional<size_t> size() const override { return images_.size(0); }

  torch::data::Example<> get_batch(torch::ArrayRef<size_t> indices) override {
    auto rows = torch::empty({static_cast<int64_t>(indices.size())}, torch::kLong);
    std::copy(indices.begin(), indices.end(), rows.data_ptr<int64_t>());
    // The mean and standard deviation of Fashion-MNIST's pixels.
    const auto pixels = images_.index_select(0, rows).to(torch::kFloat).div_(255).sub_(0.286).div_(0.353);
    return {pixels, labels_.index_select(0, rows)};
  }

 private:
  torch::Tensor images_, labels_;
};

}  // namespace fashion_mnist
