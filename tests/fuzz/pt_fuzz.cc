// Reads any bytes as the pickle of a .pt file: its values, and the tensors of a state dict.
#include <set>
#include <string>

#include "fuzz/target.h"
#include "snapshot/pickle_reader.h"
#include "snapshot/pt_contents.h"

namespace {

using namespace lockstep::snapshot;
using lockstep::fuzz::must;

// The rest of the file: two storages.
constexpr uint64_t kSmall = 16, kLarge = 4096;

std::optional<uint64_t> storage_bytes(const std::string& key) {
  if (key == "0") return kSmall;
  if (key == "1") return kLarge;
  return std::nullopt;
}

void check(const PtContents& contents, uint64_t file_bytes) {
  uint64_t bytes = 0;
  for (const auto& view : contents.views) {
    int64_t count = 1, last = view.offset;
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      count *= view.sizes[d];
      last += (view.sizes[d] - 1) * view.strides[d];
    }
    must(view.offset >= 0 && view.offset <= view.storage_elements, "a tensor begins within its storage");
    must(count == 0 || (last >= 0 && last < view.storage_elements), "a tensor ends within its storage");
    bytes += static_cast<uint64_t>(count) * c10::elementSize(view.dtype);
  }
  must(bytes <= 4 * file_bytes, "the size of the tensors is limited by the size of the file");
  std::set<std::string> names;
  for (const auto& [name, view] : contents.names) {
    must(view < contents.views.size(), "each name has a tensor");
    must(names.insert(name).second, "names are unique");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t count) {
  const std::string bytes(reinterpret_cast<const char*>(data), count);
  try {
    const Pickle pickle(bytes, [](std::string_view) { return true; });
  } catch (const PickleError&) {
  }
  const auto file_bytes = count + kSmall + kLarge;
  try {
    check(read_pt_contents(bytes, file_bytes, storage_bytes), file_bytes);
  } catch (const PtError&) {
  }
  return 0;
}
