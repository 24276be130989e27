#include "snapshot/pt_reader.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <string>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/printable.h"
#include "snapshot/pt_contents.h"
#include "snapshot/zip_reader.h"

namespace lockstep::snapshot {

namespace {

// Enough for some hundred thousand tensors.
constexpr uint64_t kLargestPickle = uint64_t{64} << 20;

class PtReader {
 public:
  explicit PtReader(const std::filesystem::path& path) : path_(path), zip_(path) {
    const auto& first = zip_.first_name();
    prefix_ = first.substr(0, first.find('/') + 1);
    if (zip_.contains(prefix_ + "constants.pkl")) {
      fail("it is a TorchScript archive, as torch.jit.save and torch::save of C++ write them",
           "save its state dict in Python: torch.save(torch.jit.load('model.pt').state_dict(), 'new.pt')");
    }
    if (prefix_.empty() || !zip_.contains(prefix_ + "data.pkl")) {
      fail("it is a zip, but not one of torch.save", "pass a file that torch.save has written");
    }
    const auto order = prefix_ + "byteorder";
    if (zip_.contains(order) && zip_.size(order) <= 16 && zip_.read_text(order) != "little") {
      fail("its numbers are not little-endian", "write it again on a little-endian machine");
    }
  }

  NamedTensors read() {
    const auto name = prefix_ + "data.pkl";
    if (zip_.size(name) > kLargestPickle) {
      fail("its pickle is too large",
           "save only the tensors in Python: torch.save(model.state_dict(), 'new.pt')");
    }
    try {
      const auto contents =
          read_pt_contents(zip_.read_text(name), zip_.file_size(), [&](const std::string& key) {
            return zip_.contains(entry(key)) ? std::optional(zip_.size(entry(key))) : std::nullopt;
          });
      std::vector<at::Tensor> views;
      for (const auto& view : contents.views) {
        const auto& storage = storage_of(view);
        views.push_back(
            at::empty({0}, storage.options()).set_(storage.storage(), view.offset, view.sizes, view.strides));
      }
      NamedTensors tensors;
      for (const auto& [tensor, index] : contents.names) tensors.emplace_back(tensor, views[index]);
      return tensors;
    } catch (const PtError& error) {
      fail(error.what(), error.hint());
    }
  }

 private:
  [[noreturn]] void fail(const std::string& evidence, const std::string& hint) const {
    throw SnapshotError(base::compose({.what = fmt::format("cannot read {}", base::printable(path_.string())),
                                       .evidence = evidence,
                                       .hint = hint}));
  }

  std::string entry(const std::string& key) const { return prefix_ + "data/" + key; }

  // One-dimensional. Reads each storage once, even if it holds several tensors.
  const at::Tensor& storage_of(const PtView& view) {
    auto& storage = storages_[view.storage];
    if (storage.defined()) return storage;
    storage = at::empty({view.storage_elements}, view.dtype);
    zip_.read(entry(view.storage), storage.data_ptr());
    // A bool with any other value is undefined behaviour in C++.
    if (view.dtype == at::kBool && storage.view(at::kByte).gt(1).any().item<bool>()) {
      fail(
          fmt::format("its storage {} has values that are neither true nor false", base::quote(view.storage)),
          "write it again with torch.save");
    }
    return storage;
  }

  std::filesystem::path path_;
  ZipReader zip_;
  std::string prefix_;
  std::map<std::string, at::Tensor> storages_;  // by key
};

}  // namespace

NamedTensors read_pt(const std::filesystem::path& path) {
  const at::NoGradGuard no_grad;
  return PtReader(path).read();
}

NamedTensors strip_prefix(NamedTensors tensors, std::string_view prefix) {
  const bool all = std::all_of(tensors.begin(), tensors.end(),
                               [&](const auto& named) { return named.first.starts_with(prefix); });
  if (!all) return tensors;
  for (auto& [name, tensor] : tensors) name.erase(0, prefix.size());
  return tensors;
}

}  // namespace lockstep::snapshot
