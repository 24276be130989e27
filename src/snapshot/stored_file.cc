#include "snapshot/stored_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <fmt/format.h>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error_text.h"
#include "base/printable.h"
#include "snapshot/format.h"

namespace lockstep::snapshot {

using nlohmann::json;

namespace {

// Small enough for the bytes to be in the cache when the checksum is computed.
constexpr size_t kReadBytes = size_t{1} << 20;

constexpr const char* kDamagedHint = "use an earlier snapshot; if this one was copied, copy it again";
constexpr const char* kForeignHint = "use `lockstep snapshot import` for files of other programs";

const char* reading_hint(int error) {
  switch (error) {
    case ENOENT:
      return "list the snapshots with `lockstep snapshot ls`";
    case EACCES:
    case EPERM:
      return "make it readable for this user";
    case EMFILE:
    case ENFILE:
      return "too many files are open: raise `ulimit -n`, or close files that are not needed";
    case ENOMEM:
      return "free memory, or use a machine with more";
    case ESTALE:
      return "the file server lost the file: try again, or mount the file system again";
    default:
      return "check the kernel's log (dmesg) for errors of the disk or the file server";
  }
}

const char* kind_of_file(mode_t mode) {
  return S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a named pipe" : "a device or socket";
}

// The version of the format; 0 if it is not a number, nothing if the file has none.
std::optional<uint64_t> version_in(const Header& header) {
  const auto found = header.metadata.find(kVersionKey);
  if (found == header.metadata.end()) return std::nullopt;
  const auto& text = found->second;
  uint64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  return error == std::errc() && end == text.data() + text.size() ? version : 0;
}

bool is_pickled(std::string_view first_bytes) {
  return first_bytes.starts_with("PK\x03\x04") || first_bytes.starts_with("\x80\x02");
}

// Whether the header has a checksum in the fixed place, where it counts as zeros.
bool has_checksum(std::string_view header) {
  return header.starts_with(kChecksumPrefix) && header.size() >= kChecksumPrefix.size() + Checksum::kDigits;
}

json parse_about(const StoredFile& file, const std::string& text) {
  if (text.size() > kMostAboutBytes) {
    file.damaged(fmt::format("the description of its run has {} bytes; the limit is {}", text.size(),
                             kMostAboutBytes));
  }
  const auto not_too_deep = [&](int depth, json::parse_event_t, json&) {
    if (depth > kMostAboutDepth) file.damaged("the description of its run is nested too deeply");
    return true;
  };
  try {
    return json::parse(text, not_too_deep);
  } catch (const json::exception&) {
    file.damaged("the description of its run is not JSON");
  }
}

}  // namespace

template <class Kind>
void StoredFile::throw_as(const std::string& evidence, const std::string& hint) const {
  throw Kind(
      base::compose({.what = fmt::format("cannot use the snapshot {}", base::printable(path_.string())),
                     .evidence = evidence,
                     .hint = hint}));
}

StoredFile::StoredFile(const std::filesystem::path& path, Origin origin) : path_(path) {
  open();
  read_header(origin);
}

void StoredFile::open() {
  // Non-blocking, so that opening a named pipe does not wait for a writer.
  fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd_) fail_to("open", errno);
  struct stat status = {};
  if (::fstat(fd_.get(), &status) != 0) fail_to("open", errno);
  if (!S_ISREG(status.st_mode)) {
    refuse(fmt::format("it is not a regular file but {}", kind_of_file(status.st_mode)),
           "pass the path of a .safetensors file");
  }
  bytes_ = left_ = static_cast<uint64_t>(status.st_size);
}

void StoredFile::read_header(Origin origin) {
  std::string length(std::min(bytes_, kLengthBytes), '\0');
  read(length.data(), length.size());
  std::string text, wrong;
  try {
    text.resize(header_bytes(length, bytes_));
    read(text.data(), text.size());
    parse_header(text, header_);
  } catch (const FormatError& error) {
    wrong = error.what();
  }

  const bool ours = header_.metadata.contains(kAboutKey) || text.starts_with(kChecksumPrefix);
  if (ours) take_checksum(text, length);
  // Verifies the checksum before it trusts the version, because a flipped bit can turn the version into a
  // newer one. A newer version may use an unknown checksum, which is then not verified.
  const auto version = ours ? version_in(header_) : std::nullopt;
  if (version && *version > kFormatVersion) {
    finish();
    throw_as<NewerFormatError>(
        fmt::format("it was written by a newer lockstep: format version {}, this one reads up to {}",
                    *version, kFormatVersion),
        "use the lockstep that wrote it, or a newer one");
  }
  if (!wrong.empty() && is_pickled(length)) throw_as<DamagedError>("it is a .pt file", kForeignHint);
  if (!wrong.empty()) damaged(wrong);
  if (version && *version == 0) {
    damaged(fmt::format("its format version is {}, which is not a number",
                        base::quote(header_.metadata.at(kVersionKey))));
  }

  foreign_ = !ours;
  if (foreign_ && origin == Origin::Lockstep) {
    throw_as<DamagedError>("it is a safetensors file of another program", kForeignHint);
  }
  const auto expected = kLengthBytes + text.size() + header_.data_bytes();
  if (bytes_ < expected) damaged(fmt::format("it is cut short: it has {} bytes of {}", bytes_, expected));
  if (bytes_ > expected) damaged(fmt::format("it has {} bytes after its end", bytes_ - expected));
  if (foreign_) return;
  const auto found = header_.metadata.find(kAboutKey);
  if (found == header_.metadata.end()) damaged("it has no description of its run");
  about_ = parse_about(*this, found->second);
  if (digits_.empty()) {
    damaged("its checksum is not where lockstep puts it: another program has rewritten the file");
  }
}

void StoredFile::take_checksum(std::string text, const std::string& length) {
  if (!has_checksum(text)) return;
  const auto begin = kChecksumPrefix.size();
  digits_ = text.substr(begin, Checksum::kDigits);
  text.replace(begin, Checksum::kDigits, Checksum::kDigits, '0');
  checksum_ = Checksum();
  checksum_.add(length.data(), length.size());
  checksum_.add(text.data(), text.size());
}

void StoredFile::read(char* to, uint64_t count) {
  while (count > 0) {
    const auto got = ::read(fd_.get(), to, std::min<uint64_t>(count, kReadBytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_to("read", errno);
    if (got == 0) refuse("it became shorter while it was read", "find out which program writes to it");
    checksum_.add(to, static_cast<size_t>(got));
    to += got;
    count -= static_cast<uint64_t>(got);
    left_ -= static_cast<uint64_t>(got);
  }
}

void StoredFile::finish() {
  std::string piece(std::min<uint64_t>(left_, kReadBytes), '\0');
  while (left_ > 0) read(piece.data(), std::min<uint64_t>(left_, piece.size()));
  if (digits_.empty()) return;
  if (const auto found = checksum_.digits(); found != digits_) {
    damaged(fmt::format("its checksum is wrong: the file contains {}, but its bytes have {}",
                        base::quote(digits_), base::quote(found)));
  }
}

void StoredFile::damaged(const std::string& evidence) const {
  throw_as<DamagedError>(evidence, kDamagedHint);
}

void StoredFile::refuse(const std::string& evidence, const std::string& hint) const {
  throw_as<SnapshotError>(evidence, hint);
}

void StoredFile::fail_to(const char* verb, int error) const {
  struct stat link = {};
  // A file server reports ESTALE for a removed file that is still open.
  const bool may_be_gone = error == ENOENT || error == ESTALE;
  const bool gone = may_be_gone && ::lstat(path_.c_str(), &link) != 0 && errno == ENOENT;
  if (error == ENOENT && !gone && S_ISLNK(link.st_mode)) {
    refuse("it is a link to a file that is not there", "restore that file, or remove the link");
  }
  const auto message =
      base::compose({.what = fmt::format("cannot {} the snapshot {}", verb, base::printable(path_.string())),
                     .evidence = base::errno_text(error),
                     .hint = reading_hint(error)});
  if (gone) throw GoneError(message);
  throw SnapshotError(message);
}

Summary read_summary(const std::filesystem::path& path, Origin origin) {
  const StoredFile file(path, origin);
  return {.about = file.about(),
          .bytes = file.bytes(),
          .tensors = file.header().tensors,
          .foreign = file.foreign()};
}

void verify_file(const std::filesystem::path& path, Origin origin) { StoredFile(path, origin).finish(); }

}  // namespace lockstep::snapshot
