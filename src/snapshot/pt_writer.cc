#include "snapshot/pt_writer.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unistd.h>

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/fd.h"
#include "snapshot/pickle_writer.h"
#include "snapshot/pt_dtypes.h"
#include "snapshot/pt_layout.h"

namespace lockstep::snapshot {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_unwritten(const fs::path& path, const std::string& what, int error) {
  throw SnapshotError(base::compose({.what = fmt::format("cannot write {}", path.string()),
                                     .evidence = fmt::format("{}: {}", what, base::errno_text(error)),
                                     .hint = error == ENOSPC || error == EDQUOT
                                                 ? "free space on that disk, or write to another"
                                                 : "choose a directory that exists and may be written to"}));
}

// A file that takes its name only when it is whole; until then it is hidden beside it, and it is removed if
// it never gets there.
class HiddenFile {
 public:
  explicit HiddenFile(const fs::path& path) : path_(path) {
    do {
      static std::atomic<int> count{0};
      hidden_ =
          path.parent_path() / fmt::format(".{}.{}-{}.partial", path.filename().string(), getpid(), ++count);
      fd_.reset(::open(hidden_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    } while (!fd_ && errno == EEXIST);  // of a killed process that had this pid
    if (!fd_) throw_unwritten(path_, "open", errno);
  }
  ~HiddenFile() {
    if (fd_) ::unlink(hidden_.c_str());
  }
  HiddenFile(const HiddenFile&) = delete;
  HiddenFile& operator=(const HiddenFile&) = delete;

  // Remembers what went wrong for commit(): the zip writer writes in its destructor too, where nothing may
  // be thrown.
  void write(const char* bytes, size_t count) {
    while (error_ == 0 && count > 0) {
      const auto written = ::write(fd_.get(), bytes, std::min<size_t>(count, 1 << 30));
      if (written < 0) {
        if (errno != EINTR) error_ = errno;
        continue;
      }
      bytes += written;
      count -= static_cast<size_t>(written);
    }
  }

  void commit() {
    if (error_ != 0) throw_unwritten(path_, "write", error_);
    if (::fsync(fd_.get()) != 0) throw_unwritten(path_, "fsync", errno);
    if (::rename(hidden_.c_str(), path_.c_str()) != 0) throw_unwritten(path_, "rename", errno);
    fd_.reset();
    const auto directory = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
    const base::Fd parent(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Some file systems cannot do this for directories.
    if (!parent || (::fsync(parent.get()) != 0 && errno != EINVAL)) {
      throw_unwritten(path_, "fsync of the directory", errno);
    }
  }

 private:
  fs::path path_, hidden_;
  base::Fd fd_;
  int error_ = 0;
};

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
      wrong = "stands there twice";
    } else if (!tensor.defined()) {
      wrong = "is undefined";
    } else if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
      wrong = "is not a dense tensor with values";
    } else if (storage_class(tensor.scalar_type()).empty()) {
      wrong = fmt::format("is of type {}", c10::toString(tensor.scalar_type()));
    }
    if (!wrong.empty()) {
      throw UsageError(base::compose(
          {.what = fmt::format("a state dict cannot be written: '{}' {}", name, wrong),
           .hint = "give each tensor a name of its own, and only dense tensors of the usual types"}));
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
    new_ordered_dict();  // hooks of backward
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
  HiddenFile file(path);
  {
    caffe2::serialize::PyTorchStreamWriter zip([&file](const void* bytes, size_t count) {
      file.write(static_cast<const char*>(bytes), count);
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
  file.commit();
}

}  // namespace lockstep::snapshot
