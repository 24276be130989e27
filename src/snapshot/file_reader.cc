#include "snapshot/file_reader.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/fd.h"
#include "snapshot/checksum.h"
#include "snapshot/format.h"

namespace lockstep::snapshot {

using nlohmann::json;

namespace {

// Small enough that the checksum goes over bytes that are still in the cache.
constexpr size_t kReadBytes = size_t{1} << 20;

constexpr const char* kDamagedHint = "use an earlier snapshot; if this one was copied, copy it again";
constexpr const char* kForeignHint = "`lockstep snapshot import` takes files of other programs";

// One file, read from its beginning to its end.
class File {
 public:
  explicit File(const std::filesystem::path& path) : path_(path) {
    // Not to wait for the other end if it is a pipe.
    fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd_) fail_to("open", errno);
    struct stat status = {};
    if (::fstat(fd_.get(), &status) != 0) fail_to("open", errno);
    if (!S_ISREG(status.st_mode)) refuse("it is not a regular file", "name a .safetensors file");
    bytes_ = static_cast<uint64_t>(status.st_size);
  }

  uint64_t bytes() const { return bytes_; }

  void read(char* to, uint64_t count, Checksum* checksum = nullptr) {
    while (count > 0) {
      const auto got = ::read(fd_.get(), to, std::min<uint64_t>(count, kReadBytes));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_to("read", errno);
      if (got == 0) refuse("it became shorter while it was read", "find out which program writes to it");
      if (checksum) checksum->add(to, static_cast<size_t>(got));
      to += got;
      count -= static_cast<uint64_t>(got);
    }
  }

  template <class Kind = SnapshotError>
  [[noreturn]] void refuse(const std::string& evidence, const std::string& hint = kDamagedHint) const {
    throw Kind(base::compose({.what = fmt::format("cannot use the snapshot {}", path_.string()),
                              .evidence = evidence,
                              .hint = hint}));
  }

 private:
  [[noreturn]] void fail_to(const char* verb, int error) const {
    throw SnapshotError(base::compose(
        {.what = fmt::format("cannot {} the snapshot {}", verb, path_.string()),
         .evidence = base::errno_text(error),
         .hint = error == ENOENT ? "look at what is there with `lockstep snapshot ls`"
                 : error == EACCES
                     ? "it must be readable by this user"
                     : "look for errors of the disk or file server in the kernel's log (dmesg)"}));
  }

  std::filesystem::path path_;
  base::Fd fd_;
  uint64_t bytes_ = 0;
};

// A file whose header is read and makes sense; its data comes next.
struct Opened {
  File file;
  Header header;
  json about = json::object();
  bool foreign = false;
  Checksum checksum = {};   // of the header
  std::string digits = {};  // what the checksum of all must be; empty if nothing says so
};

void check_version(const File& file, const Header& header) {
  const auto found = header.metadata.find(kVersionKey);
  if (found == header.metadata.end()) return;
  const auto& text = found->second;
  uint64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end != text.data() + text.size() || version == 0) {
    file.refuse(fmt::format("its format version is {}, which is no number", printable(text)));
  }
  if (version > kFormatVersion) {
    file.refuse<NewerFormatError>(
        fmt::format("it is written by a newer lockstep: format version {}, this one reads up to {}", version,
                    kFormatVersion),
        "use the lockstep that wrote it, or a newer one");
  }
}

json parse_about(const File& file, const std::string& text) {
  if (text.size() > kMostAboutBytes) {
    file.refuse(
        fmt::format("what it says about the run has {} bytes, of {} at most", text.size(), kMostAboutBytes));
  }
  const auto not_too_deep = [&](int depth, json::parse_event_t, json&) {
    if (depth > kMostAboutDepth) file.refuse("what it says about the run is nested too deep");
    return true;
  };
  try {
    return json::parse(text, not_too_deep);
  } catch (const json::exception&) {
    file.refuse("what it says about the run is not JSON");
  }
}

// Where its own digits stand in the header, the checksum counts zeros.
void take_checksum(Opened& opened, std::string text, const std::string& length) {
  const auto begin = kChecksumPrefix.size();
  if (!text.starts_with(kChecksumPrefix) || text.size() < begin + Checksum::kDigits) {
    opened.file.refuse(
        "its checksum is not where lockstep puts it: another program has written this file anew");
  }
  opened.digits = text.substr(begin, Checksum::kDigits);
  text.replace(begin, Checksum::kDigits, Checksum::kDigits, '0');
  opened.checksum.add(length.data(), length.size());
  opened.checksum.add(text.data(), text.size());
}

bool is_pickled(std::string_view first_bytes) {
  return first_bytes.starts_with("PK\x03\x04") || first_bytes.starts_with("\x80\x02");
}

Opened open(const std::filesystem::path& path, Origin origin) {
  Opened opened{.file = File(path), .header = {}};
  auto& [file, header, about, foreign, checksum, digits] = opened;

  std::string length(std::min(file.bytes(), kLengthBytes), '\0');
  file.read(length.data(), length.size());
  std::string text;
  try {
    text.resize(header_bytes(length, file.bytes()));
    file.read(text.data(), text.size());
    parse_header(text, header);
  } catch (const FormatError& error) {
    if (header.metadata.contains(kAboutKey)) check_version(file, header);
    if (is_pickled(length)) file.refuse("it is a .pt file", kForeignHint);
    file.refuse(error.what());
  }

  foreign = !header.metadata.contains(kAboutKey) && !text.starts_with(kChecksumPrefix);
  if (foreign && origin == Origin::Lockstep) {
    file.refuse("it is a safetensors file of another program", kForeignHint);
  }
  if (!foreign) check_version(file, header);
  const auto expected = kLengthBytes + text.size() + header.data_bytes();
  if (file.bytes() < expected) {
    file.refuse(fmt::format("it is cut short: {} bytes, of {}", file.bytes(), expected));
  }
  if (file.bytes() > expected) {
    file.refuse(fmt::format("it has {} bytes after its end", file.bytes() - expected));
  }
  if (!foreign) {
    const auto found = header.metadata.find(kAboutKey);
    if (found == header.metadata.end()) file.refuse("it does not say anything about the run");
    about = parse_about(file, found->second);
    take_checksum(opened, std::move(text), length);
  }
  return opened;
}

void check_sum(const Opened& opened) {
  if (opened.foreign) return;
  if (const auto found = opened.checksum.digits(); found != opened.digits) {
    opened.file.refuse(fmt::format("its checksum is wrong: {} stands in it, {} is that of its bytes",
                                   printable(opened.digits), printable(found)));
  }
}

at::Tensor make_tensor(const File& file, const TensorInfo& info) {
  try {
    return at::empty(info.shape, at::TensorOptions().dtype(info.dtype).device(at::kCPU));
  } catch (const c10::Error&) {
    file.refuse(
        fmt::format("there is no memory for the {} bytes of {}", info.end - info.begin, printable(info.name)),
        "free memory, or use a machine with more");
  }
}

// Compilers may take a truth value for granted to be 0 or 1.
void check_truth_values(const File& file, const TensorInfo& info, const at::Tensor& tensor) {
  if (info.dtype != at::kBool) return;
  const auto* bytes = static_cast<const uint8_t*>(tensor.data_ptr());
  if (std::any_of(bytes, bytes + tensor.nbytes(), [](uint8_t byte) { return byte > 1; })) {
    file.refuse(fmt::format("truth values of {} are neither 0 nor 1", printable(info.name)));
  }
}

}  // namespace

Summary read_summary(const std::filesystem::path& path, Origin origin) {
  auto opened = open(path, origin);
  return {.about = std::move(opened.about),
          .bytes = opened.file.bytes(),
          .tensors = std::move(opened.header.tensors),
          .foreign = opened.foreign};
}

Document read_file(const std::filesystem::path& path, Origin origin) {
  auto opened = open(path, origin);
  const auto& infos = opened.header.tensors;
  Document document{std::vector<Entry>(infos.size()), std::move(opened.about)};
  for (const auto index : opened.header.by_offset()) {
    const auto& info = infos[index];
    auto tensor = make_tensor(opened.file, info);
    opened.file.read(static_cast<char*>(tensor.data_ptr()), info.end - info.begin, &opened.checksum);
    check_truth_values(opened.file, info, tensor);
    document.tensors[index] = {info.name, std::move(tensor)};
  }
  check_sum(opened);
  return document;
}

void verify_file(const std::filesystem::path& path, Origin origin) {
  auto opened = open(path, origin);
  std::string piece(kReadBytes, '\0');
  for (uint64_t left = opened.header.data_bytes(); left > 0;) {
    const auto count = std::min<uint64_t>(left, piece.size());
    opened.file.read(piece.data(), count, &opened.checksum);
    left -= count;
  }
  check_sum(opened);
}

}  // namespace lockstep::snapshot
