#include "snapshot/file_writer.h"

#include <algorithm>
#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/printable.h"
#include "snapshot/checksum.h"
#include "snapshot/format.h"
#include "snapshot/hidden_file.h"
#include "snapshot/safetensors.h"

namespace lockstep::snapshot {

namespace {

// Large enough to make the cost of system calls negligible, small enough for the bytes to stay in the cache
// between the checksum and the write.
constexpr size_t kPieceBytes = size_t{4} << 20;

// Combines small tensors into large writes, and computes the checksum of everything written.
class Stream {
 public:
  explicit Stream(HiddenFile& file) : file_(file) { gathered_.reserve(kPieceBytes); }

  void add(const char* bytes, size_t count) {
    while (count > 0) {
      const auto piece = std::min(count, kPieceBytes - gathered_.size());
      if (piece == kPieceBytes) {
        pass(bytes, piece);
      } else {
        gathered_.append(bytes, piece);
        if (gathered_.size() == kPieceBytes) finish();
      }
      bytes += piece;
      count -= piece;
    }
  }

  // In row-major order, whatever the strides, and without copying the whole tensor.
  void add(const at::Tensor& tensor) {
    const bool plain =
        tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
    if (plain) {
      add(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
    } else if (tensor.nbytes() <= kPieceBytes) {
      add(tensor.cpu().resolve_conj().resolve_neg().contiguous());
    } else if (tensor.size(0) == 1) {
      add(tensor.select(0, 0));
    } else {
      const auto row_bytes = static_cast<int64_t>(tensor.nbytes()) / tensor.size(0);
      const auto rows = std::max<int64_t>(int64_t{kPieceBytes} / row_bytes, 1);
      for (int64_t row = 0; row < tensor.size(0); row += rows) {
        add(tensor.narrow(0, row, std::min(rows, tensor.size(0) - row)));
      }
    }
  }

  void finish() {
    if (!gathered_.empty()) pass(gathered_.data(), gathered_.size());
    gathered_.clear();
  }

  const Checksum& checksum() const { return checksum_; }

 private:
  void pass(const char* bytes, size_t count) {
    checksum_.add(bytes, count);
    file_.append(bytes, count);
  }

  HiddenFile& file_;
  std::string gathered_;
  Checksum checksum_;
};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& evidence, const char* hint) {
  throw UsageError(base::compose({.what = fmt::format("the snapshot {} cannot be written", path.string()),
                                  .evidence = evidence,
                                  .hint = hint}));
}

TensorInfo info_of(const Entry& entry, const std::filesystem::path& path) {
  const auto& tensor = entry.tensor;
  const auto what = [&] { return fmt::format("its tensor {}", base::quote(entry.name)); };
  if (!tensor.defined()) refuse(path, what() + " is undefined", "leave it out");
  if (tensor.layout() != at::kStrided) refuse(path, what() + " is not dense", "save tensor.to_dense()");
  if (tensor.is_meta()) refuse(path, what() + " has no values", "move it to a device before saving");
  if (tensor.dim() > static_cast<int64_t>(kMostDimensions)) {
    refuse(path, fmt::format("{} has more than {} dimensions", what(), kMostDimensions), "reshape it");
  }
  if (!dtype_name(tensor.scalar_type())) {
    refuse(path,
           fmt::format("{} is {}, for which safetensors has no name", what(),
                       c10::toString(tensor.scalar_type())),
           "save it as another type; complex double as its real and imaginary parts (at::view_as_real)");
  }
  return {.name = entry.name, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()};
}

// Assigns the offsets of the tensors: wide types first, because some readers map tensors directly from the
// file and need them aligned.
std::vector<size_t> lay_out(const Document& document, Header& header) {
  std::vector<size_t> order(document.tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return document.tensors[a].tensor.element_size() > document.tensors[b].tensor.element_size();
  });
  uint64_t offset = 0;
  for (const auto index : order) {
    header.tensors[index].begin = offset;
    header.tensors[index].end = offset += document.tensors[index].tensor.nbytes();
  }
  return order;
}

std::string about_text(const Document& document, const std::filesystem::path& path) {
  std::string text;
  try {
    text = document.about.dump();
  } catch (const nlohmann::json::exception& error) {
    refuse(path, fmt::format("the description of the run cannot be written as JSON: {}", error.what()),
           "use UTF-8 for all text");
  }
  if (text.size() > kMostAboutBytes) {
    refuse(path,
           fmt::format("the description of the run has {} bytes as JSON; the limit is {}", text.size(),
                       kMostAboutBytes),
           "store large data as tensors");
  }
  return text;
}

}  // namespace

void write_file(const Document& document, const std::filesystem::path& path, const WriteProgress& progress) {
  if (!path.has_filename()) refuse(path, "the path has no file name", "pass the path of a file");
  const at::NoGradGuard no_grad;
  Header header;
  for (const auto& entry : document.tensors) header.tensors.push_back(info_of(entry, path));
  const auto order = lay_out(document, header);
  header.metadata = {{kChecksumKey, fmt::format("{}{:0<{}}", kChecksumKind, "", Checksum::kDigits)},
                     {kFormatKey, "pt"},
                     {kVersionKey, std::to_string(kFormatVersion)},
                     {kAboutKey, about_text(document, path)}};
  std::string head;
  try {
    head = encode_header(header);
  } catch (const FormatError& error) {
    refuse(path, error.what(), "give each tensor a unique name, in UTF-8, other than __metadata__");
  }

  HiddenFile file(path, "the snapshot", head.size() + header.data_bytes(), progress);
  Stream stream(file);
  stream.add(head.data(), head.size());
  for (const auto index : order) stream.add(document.tensors[index].tensor);
  stream.finish();
  file.overwrite(kChecksumOffset, stream.checksum().digits());
  file.take_name();
}

}  // namespace lockstep::snapshot
