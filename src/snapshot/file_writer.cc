#include "snapshot/file_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <random>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/fd.h"
#include "snapshot/checksum.h"
#include "snapshot/format.h"
#include "snapshot/safetensors.h"

namespace lockstep::snapshot {

namespace {

// Large enough that system calls cost nothing, small enough that the bytes are still in the cache when they
// are written after the checksum went over them.
constexpr size_t kPieceBytes = size_t{4} << 20;

constexpr std::string_view kLeftoverEnd = ".partial";

std::string hint_for(int error) {
  switch (error) {
    case ENOSPC:
      return "free space on this file system, keep fewer snapshots, or use a directory on another one";
    case EDQUOT:
      return "the user's quota is used up: remove files, or use a directory on another file system";
    case EFBIG:
      return "the file system or `ulimit -f` does not allow a file of this size";
    case EACCES:
    case EPERM:
    case EROFS:
      return "use a directory that this user may write to";
    case ENOENT:
    case ENOTDIR:
      return "make the directory first";
    case EISDIR:
      return "a directory has this name: use another";
    case ENAMETOOLONG:
      return "use a shorter name: the hidden file's is longer by 26 characters";
    default:
      return "look for errors of the disk or file server in the kernel's log (dmesg)";
  }
}

// The file while it has no name of its own; removed unless it gets it.
class HiddenFile {
 public:
  HiddenFile(const std::filesystem::path& path, uint64_t bytes_all, const WriteProgress& progress)
      : path_(path), name_(path.filename()), bytes_all_(bytes_all), progress_(progress) {
    const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    directory_.reset(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory_) fail("open the directory of", errno);
    struct stat there = {};
    if (::fstatat(directory_.get(), name_.c_str(), &there, 0) == 0 && S_ISDIR(there.st_mode)) {
      fail("replace", EISDIR);
    }
    create();
    reserve();
  }
  ~HiddenFile() { remove(); }
  HiddenFile(const HiddenFile&) = delete;
  HiddenFile& operator=(const HiddenFile&) = delete;

  void append(const char* bytes, size_t count) {
    while (count > 0) {
      const auto written = ::write(file_.get(), bytes, count);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write", errno);
      bytes += written;
      count -= static_cast<size_t>(written);
      bytes_done_ += static_cast<uint64_t>(written);
    }
    if (progress_) progress_(bytes_done_, bytes_all_);
  }

  void overwrite(uint64_t offset, std::string_view bytes) {
    while (!bytes.empty()) {
      const auto written = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write", errno);
      bytes.remove_prefix(static_cast<size_t>(written));
      offset += static_cast<uint64_t>(written);
    }
  }

  // The bytes reach the disk before the name does, and the name before this returns.
  void take_name() {
    sync(file_, "write to the disk");
    if (::renameat(directory_.get(), hidden_name_.c_str(), directory_.get(), name_.c_str()) != 0) {
      fail("rename", errno);
    }
    hidden_name_.clear();
    sync(directory_, "write to the disk the directory of");
  }

 private:
  void create() {
    std::random_device random;
    constexpr int kMostAttempts = 16;
    for (int attempt = 1;; ++attempt) {
      auto hidden_name = fmt::format(".{}.{:08x}{:08x}{}", name_, random(), random(), kLeftoverEnd);
      file_.reset(
          ::openat(directory_.get(), hidden_name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (file_) {
        hidden_name_ = std::move(hidden_name);
        return;
      }
      if (errno != EEXIST || attempt == kMostAttempts) fail("create", errno);
    }
  }

  // A disk that is too full is found before anything is written to it. Where the file system cannot reserve
  // (NFS before 4.2, FUSE), it is found on the way: glibc's posix_fallocate would write the whole file there.
  void reserve() {
    if (::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_all_)) == 0) return;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail("reserve the space for", errno);
  }

  void sync(const base::Fd& fd, const char* doing) {
    int error = 0;
    do {
      error = ::fsync(fd.get()) == 0 ? 0 : errno;
    } while (error == EINTR);
    // Some file systems cannot do this for directories.
    if (error != 0 && error != EINVAL) fail(doing, error);
  }

  void remove() {
    file_.reset();
    if (!hidden_name_.empty()) ::unlinkat(directory_.get(), hidden_name_.c_str(), 0);
    hidden_name_.clear();
  }

  [[noreturn]] void fail(const char* doing, int error) {
    remove();
    auto where = fmt::format("{} of {} bytes written", bytes_done_, bytes_all_);
    struct statvfs system = {};
    if (directory_ && ::fstatvfs(directory_.get(), &system) == 0) {
      where += fmt::format(", {} bytes free without this file", uint64_t{system.f_bavail} * system.f_frsize);
    }
    throw SnapshotError(
        base::compose({.what = fmt::format("cannot {} the snapshot {}", doing, path_.string()),
                       .where = std::move(where),
                       .evidence = base::errno_text(error),
                       .hint = hint_for(error) + "; earlier snapshots are untouched"}));
  }

  std::filesystem::path path_;
  std::string name_, hidden_name_;
  uint64_t bytes_all_, bytes_done_ = 0;
  const WriteProgress& progress_;
  base::Fd directory_, file_;
};

// Gathers small tensors to large writes, and takes the checksum of what goes by.
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

  // In row-major order whatever its strides, without a copy of the whole.
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
  const auto what = [&] { return fmt::format("its tensor {}", printable(entry.name)); };
  if (!tensor.defined()) refuse(path, what() + " is undefined", "leave it out");
  if (tensor.layout() != at::kStrided) refuse(path, what() + " is not dense", "save tensor.to_dense()");
  if (tensor.is_meta()) refuse(path, what() + " has no values", "give it a device before saving");
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

// Where the bytes of each tensor go: those of wide types first, because some readers take tensors straight
// from the file, and cannot where they are not aligned.
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
    refuse(path, fmt::format("what it says about the run is no JSON: {}", error.what()),
           "use UTF-8 for all text");
  }
  if (text.size() > kMostAboutBytes) {
    refuse(path,
           fmt::format("what it says about the run has {} bytes as JSON, of {} at most", text.size(),
                       kMostAboutBytes),
           "store large data as tensors");
  }
  return text;
}

}  // namespace

void write_file(const Document& document, const std::filesystem::path& path, const WriteProgress& progress) {
  if (!path.has_filename()) refuse(path, "the path has no file name", "name a file, not a directory");
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
    refuse(path, error.what(), "give each tensor a name of its own, in UTF-8, other than __metadata__");
  }

  HiddenFile file(path, head.size() + header.data_bytes(), progress);
  Stream stream(file);
  stream.add(head.data(), head.size());
  for (const auto index : order) stream.add(document.tensors[index].tensor);
  stream.finish();
  file.overwrite(kChecksumOffset, stream.checksum().digits());
  file.take_name();
}

bool is_leftover_of(std::string_view file, std::string_view name) {
  constexpr size_t kRandomDigits = 16;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (file.size() != 1 + name.size() + 1 + kRandomDigits + kLeftoverEnd.size()) return false;
  const auto digits = file.substr(1 + name.size() + 1, kRandomDigits);
  return file.front() == '.' && file.substr(1, name.size()) == name && file[1 + name.size()] == '.' &&
         file.ends_with(kLeftoverEnd) && std::all_of(digits.begin(), digits.end(), is_digit);
}

}  // namespace lockstep::snapshot
