#include "snapshot/pt_writer.h"

#include <exception>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/printable.h"
#include "snapshot/hidden_file.h"
#include "snapshot/pickle_writer.h"
#include "snapshot/pt_dtypes.h"
#include "snapshot/pt_layout.h"

namespace lockstep::snapshot {

namespace {

namespace fs = std::filesystem;

std::string_view storage_class(at::ScalarType dtype) {
  for (const auto& known : kPtDtypes) {
    if (known.dtype == dtype) return known.storage;
  }
  return {};
}

void check(const NamedTensors& tensors) {
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    std::string wrong;
    if (!names.insert(name).second) {
      wrong = "appears twice";
    } else if (!tensor.defined()) {
      wrong = "is undefined";
    } else if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
      wrong = "is not a dense tensor with values";
    } else if (storage_class(tensor.scalar_type()).empty()) {
      wrong = fmt::format("is of type {}", c10::toString(tensor.scalar_type()));
    }
    if (!wrong.empty()) {
      throw UsageError(base::compose(
          {.what = fmt::format("a state dict cannot be written: '{}' {}", base::printable(name), wrong),
           .hint = "give each tensor a unique name, and save only dense tensors of the usual types"}));
    }
    try {
      nlohmann::json(name).dump();
    } catch (const nlohmann::json::type_error&) {
      throw UsageError(
          "a state dict cannot be written: a name in it is not UTF-8\nhint: rename the module's "
          "parameters");
    }
  }
}

std::string pickle(const NamedTensors& named, const PtLayout& layout) {
  PickleWriter out;
  const auto new_ordered_dict = [&] {
    out.global("collections", "OrderedDict");
    out.empty_tuple();
    out.call();
  };
  new_ordered_dict();
  out.mark();
  for (size_t i = 0; i < named.size(); ++i) {
    const auto& tensor = layout.tensor(i);
    const auto& stretch = layout.stretch(i);
    out.text(named[i].first);
    out.global("torch._utils", "_rebuild_tensor_v2");
    out.mark();
    {
      out.mark();
      out.text("storage");
      out.global("torch", storage_class(tensor.scalar_type()));
      out.text(stretch.key);
      out.text("cpu");
      out.integer(stretch.elements.numel());
      out.tuple();
      out.persistent();
    }
    out.integer(layout.offset(i));
    out.integers(tensor.sizes());
    out.integers(tensor.strides());
    out.no();            // requires_grad
    new_ordered_dict();  // backward hooks
    out.tuple();
    out.call();
  }
  out.set_items();
  return std::move(out).finish();
}

}  // namespace

void write_pt(const fs::path& path, const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  check(tensors);
  const PtLayout layout(tensors);
  const auto dict = pickle(tensors, layout);
  HiddenFile file(path, "the state dict");
  // Thrown at the end, because the zip writer also writes in its destructor, which must not throw.
  std::exception_ptr failure;
  {
    caffe2::serialize::PyTorchStreamWriter zip([&](const void* bytes, size_t count) {
      try {
        if (!failure) file.append(static_cast<const char*>(bytes), count);
      } catch (const SnapshotError&) {
        failure = std::current_exception();
      }
      return count;
    });
    constexpr std::string_view kByteOrder = "little";
    zip.writeRecord("data.pkl", dict.data(), dict.size());
    zip.writeRecord("byteorder", kByteOrder.data(), kByteOrder.size());
    for (const auto& stretch : layout.stretches()) {
      const auto elements = stretch.elements.cpu();
      zip.writeRecord("data/" + stretch.key, elements.data_ptr(), elements.nbytes());
    }
    zip.writeEndOfFile();
  }
  if (failure) std::rethrow_exception(failure);
  file.take_name();
}

}  // namespace lockstep::snapshot
