#include "snapshot/file_reader.h"

#include <algorithm>
#include <fmt/format.h>

#include <ATen/ATen.h>

#include "base/printable.h"

namespace lockstep::snapshot {

namespace {

at::Tensor make_tensor(const StoredFile& file, const TensorInfo& info) {
  try {
    return at::empty(info.shape, at::TensorOptions().dtype(info.dtype).device(at::kCPU));
  } catch (const c10::Error&) {
    file.refuse(fmt::format("there is not enough memory for the {} bytes of {}", info.end - info.begin,
                            base::quote(info.name)),
                "free memory, or use a machine with more");
  }
}

// C++ code may assume that a bool is 0 or 1.
void check_truth_values(const StoredFile& file, const TensorInfo& info, const at::Tensor& tensor) {
  if (info.dtype != at::kBool) return;
  const auto* bytes = static_cast<const uint8_t*>(tensor.data_ptr());
  if (std::any_of(bytes, bytes + tensor.nbytes(), [](uint8_t byte) { return byte > 1; })) {
    file.damaged(fmt::format("the boolean tensor {} has values other than 0 and 1", base::quote(info.name)));
  }
}

}  // namespace

Document read_file(const std::filesystem::path& path, Origin origin) {
  StoredFile file(path, origin);
  const auto& infos = file.header().tensors;
  Document document{std::vector<Entry>(infos.size()), file.about()};
  for (const auto index : file.header().by_offset()) {
    const auto& info = infos[index];
    auto tensor = make_tensor(file, info);
    file.read(static_cast<char*>(tensor.data_ptr()), info.end - info.begin);
    check_truth_values(file, info, tensor);
    document.tensors[index] = {info.name, std::move(tensor)};
  }
  file.finish();
  return document;
}

}  // namespace lockstep::snapshot
