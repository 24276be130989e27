#include "snapshot/zip_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/printable.h"

namespace lockstep::snapshot {

namespace {

// The records of the format (PKWARE's APPNOTE.TXT): their signatures and fixed sizes.
constexpr std::string_view kEndMark{"PK\5\6", 4}, kEnd64Mark{"PK\6\6", 4}, kLocator64Mark{"PK\6\7", 4},
    kCentralMark{"PK\1\2", 4}, kLocalMark{"PK\3\4", 4};
constexpr uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20, kCentralBytes = 46,
                   kLocalBytes = 30;
constexpr uint64_t kLongestComment = 0xffff;
constexpr uint32_t kIn64 = 0xffffffff;  // the value is in a 64-bit field elsewhere

// The directory of even a very large model takes only a few megabytes.
constexpr uint64_t kLargestDirectory = uint64_t{256} << 20;

uint64_t little_endian(std::string_view bytes, size_t offset, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) value |= uint64_t{static_cast<uint8_t>(bytes[offset + i])} << (8 * i);
  return value;
}
uint16_t u16(std::string_view bytes, size_t offset) {
  return static_cast<uint16_t>(little_endian(bytes, offset, 2));
}
uint32_t u32(std::string_view bytes, size_t offset) {
  return static_cast<uint32_t>(little_endian(bytes, offset, 4));
}
uint64_t u64(std::string_view bytes, size_t offset) { return little_endian(bytes, offset, 8); }

// The CRC-32 of zip, eight bytes at a time: table k is for a byte followed by k others.
class Crc {
 public:
  static uint32_t of(std::string_view bytes) {
    static const Crc tables;
    uint32_t crc = ~0u;
    size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
      const auto word = u64(bytes, i) ^ crc;
      crc = 0;
      for (int k = 0; k < 8; ++k) crc ^= tables.of_[7 - k][(word >> (8 * k)) & 0xff];
    }
    for (; i < bytes.size(); ++i) {
      crc = (crc >> 8) ^ tables.of_[0][(crc ^ static_cast<uint8_t>(bytes[i])) & 0xff];
    }
    return ~crc;
  }

 private:
  Crc() {
    constexpr uint32_t kPolynomial = 0xedb88320;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
      of_[0][byte] = crc;
    }
    for (size_t k = 1; k < 8; ++k) {
      for (size_t byte = 0; byte < 256; ++byte) {
        const auto before = of_[k - 1][byte];
        of_[k][byte] = (before >> 8) ^ of_[0][before & 0xff];
      }
    }
  }

  std::array<std::array<uint32_t, 256>, 8> of_;
};

// The 64-bit values that replace fields with all bits set, in the order of those fields.
class Extra64 {
 public:
  explicit Extra64(std::string_view extra) {
    constexpr uint16_t kId64 = 1;
    while (extra.size() >= 4) {
      const auto size = std::min<size_t>(u16(extra, 2), extra.size() - 4);
      if (u16(extra, 0) == kId64) values_ = extra.substr(4, size);
      extra.remove_prefix(4 + size);
    }
  }
  // Returns false if the 64-bit value is missing.
  bool take(uint32_t field, uint64_t& value) {
    value = field;
    if (field != kIn64) return true;
    if (values_.size() < 8) return false;
    value = u64(values_, 0);
    values_.remove_prefix(8);
    return true;
  }

 private:
  std::string_view values_;
};

}  // namespace

ZipReader::ZipReader(const std::filesystem::path& path) : path_(path) {
  const std::string hint = "check the path and its permissions";
  fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a named pipe must not block
  if (!fd_) fail(base::errno_text(errno), hint);
  struct stat status = {};
  if (::fstat(fd_.get(), &status) != 0) fail(base::errno_text(errno), hint);
  if (!S_ISREG(status.st_mode)) fail("it is not a regular file", "pass the path of a file");
  file_size_ = static_cast<uint64_t>(status.st_size);
  read_directory(find_directory());
}

void ZipReader::read(const std::string& name, void* to) const {
  const auto& wanted = entry(name);
  const auto local = text_at(wanted.header, kLocalBytes);
  const auto name_bytes = u16(local, 26);
  const auto begin = wanted.header + kLocalBytes + name_bytes + u16(local, 28);
  if (!local.starts_with(kLocalMark) || begin > directory_begin_ || directory_begin_ - begin < wanted.size ||
      text_at(wanted.header + kLocalBytes, name_bytes) != name) {
    fail_damaged(fmt::format("the entry {} is not where the directory says", base::quote(name)));
  }
  read_at(begin, to, wanted.size);
  if (Crc::of({static_cast<const char*>(to), wanted.size}) != wanted.checksum) {
    fail_damaged(fmt::format("the checksum of its entry {} is wrong", base::quote(name)));
  }
}

std::string ZipReader::read_text(const std::string& name) const {
  std::string text(size(name), '\0');
  read(name, text.data());
  return text;
}

const ZipReader::Entry& ZipReader::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail_damaged(fmt::format("it has no entry {}", base::quote(name)));
  if (!found->second.stored) {
    fail(fmt::format("its entry {} is compressed or encrypted", base::quote(name)),
         "write it again with torch.save, which does not compress entries");
  }
  return found->second;
}

void ZipReader::read_at(uint64_t offset, void* to, uint64_t count) const {
  auto* bytes = static_cast<char*>(to);
  while (count > 0) {
    const auto got =
        ::pread(fd_.get(), bytes, std::min<uint64_t>(count, 1 << 30), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(base::errno_text(errno), "check the kernel's log (dmesg) for errors of the disk");
    if (got == 0) fail_damaged("it became shorter while it was read");
    bytes += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<uint64_t>(got);
  }
}

std::string ZipReader::text_at(uint64_t offset, uint64_t count) const {
  if (offset > file_size_ || file_size_ - offset < count) fail_damaged("it ends too early");
  std::string text(count, '\0');
  read_at(offset, text.data(), count);
  return text;
}

ZipReader::CentralDirectory ZipReader::find_directory() const {
  const auto tail_bytes = std::min(file_size_, kEndBytes + kLongestComment);
  const auto tail = text_at(file_size_ - tail_bytes, tail_bytes);
  const auto at = tail.rfind(kEndMark);
  if (at == std::string::npos || tail.size() - at < kEndBytes) {
    const auto begin = text_at(0, std::min<uint64_t>(file_size_, 4));
    if (begin == kLocalMark) fail_damaged("it has no end: it was cut off");
    // An old file is a pickle that starts with a ten-byte integer, its magic number.
    if (begin == "\x80\x02\x8a\x0a") {
      fail("it is in the format of PyTorch before 1.6",
           "write it again in Python: torch.save(torch.load('old.pt'), 'new.pt')");
    }
    fail("it is not a file of torch.save (not a zip)", "pass a file that torch.save has written");
  }
  CentralDirectory directory{.begin = u32(tail, at + 16), .size = u32(tail, at + 12)};
  const auto end = file_size_ - tail_bytes + at;
  if (end >= kLocator64Bytes) {
    const auto locator = text_at(end - kLocator64Bytes, kLocator64Bytes);
    if (locator.starts_with(kLocator64Mark)) {
      const auto end64 = text_at(u64(locator, 8), kEnd64Bytes);
      if (!end64.starts_with(kEnd64Mark)) fail_damaged("its directory cannot be found");
      directory = {.begin = u64(end64, 48), .size = u64(end64, 40)};
    }
  }
  if (directory.begin > end || end - directory.begin < directory.size) {
    fail_damaged("its directory lies outside the file");
  }
  return directory;
}

void ZipReader::read_directory(const CentralDirectory& directory) {
  if (directory.size > kLargestDirectory) fail_damaged("its directory is too large");
  directory_begin_ = directory.begin;
  const auto text = text_at(directory.begin, directory.size);
  std::string_view rest = text;
  uint64_t bytes = 0;
  while (!rest.empty()) {
    if (rest.size() < kCentralBytes || !rest.starts_with(kCentralMark))
      fail_damaged("its directory is broken");
    const uint64_t name_bytes = u16(rest, 28), extra_bytes = u16(rest, 30), comment_bytes = u16(rest, 32);
    if (rest.size() < kCentralBytes + name_bytes + extra_bytes + comment_bytes) {
      fail_damaged("its directory is cut off");
    }
    const std::string name(rest.substr(kCentralBytes, name_bytes));
    Extra64 extra(rest.substr(kCentralBytes + name_bytes, extra_bytes));
    constexpr uint16_t kEncrypted = 1;
    Entry entry{.checksum = u32(rest, 16), .stored = u16(rest, 10) == 0 && (u16(rest, 8) & kEncrypted) == 0};
    uint64_t packed = 0;
    if (!extra.take(u32(rest, 24), entry.size) || !extra.take(u32(rest, 20), packed) ||
        !extra.take(u32(rest, 42), entry.header)) {
      fail_damaged(fmt::format("the offset of its entry {} is missing", base::quote(name)));
    }
    // Also checks the total: overlapping entries could require any amount of memory.
    bytes += packed;
    if (packed > file_size_ || bytes > file_size_ || (entry.stored && packed != entry.size)) {
      fail_damaged(fmt::format("its entry {} is too large", base::quote(name)));
    }
    if (!entries_.emplace(name, entry).second)
      fail_damaged(fmt::format("it has two entries {}", base::quote(name)));
    if (first_name_.empty()) first_name_ = name;
    rest.remove_prefix(kCentralBytes + name_bytes + extra_bytes + comment_bytes);
  }
}

void ZipReader::fail(const std::string& evidence, const std::string& hint) const {
  throw SnapshotError(base::compose({.what = fmt::format("cannot read {}", base::printable(path_.string())),
                                     .evidence = evidence,
                                     .hint = hint}));
}

void ZipReader::fail_damaged(const std::string& evidence) const {
  fail(evidence, "the file is damaged: copy it again, or write it again with torch.save");
}

}  // namespace lockstep::snapshot
