// Reads any bytes as a snapshot or as a safetensors file of another program: the result is a summary or an
// error.
#include <set>
#include <string>

#include "fuzz/target.h"
#include "snapshot/checksum.h"
#include "snapshot/format.h"
#include "snapshot/stored_file.h"

namespace {

using namespace lockstep::snapshot;
using lockstep::SnapshotError;
using lockstep::fuzz::MemoryFile;
using lockstep::fuzz::must;

bool is_whole(const std::string& path) {
  try {
    verify_file(path, Origin::Any);
    return true;
  } catch (const SnapshotError&) {
    return false;
  }
}

// If the summary can be read, nothing in it lies outside the file.
bool check_summary(const std::string& bytes, const std::string& path) {
  try {
    const auto summary = read_summary(path, Origin::Any);
    must(summary.bytes == bytes.size(), "the size is that of the file");
    uint64_t data = 0;
    std::set<std::string> names;
    for (const auto& tensor : summary.tensors) {
      must(tensor.begin <= tensor.end && tensor.end <= bytes.size(), "tensors lie within the file");
      must(names.insert(tensor.name).second, "names are unique");
      data += tensor.end - tensor.begin;
    }
    must(data <= bytes.size(), "the tensors are no larger than the file");
    return true;
  } catch (const NewerFormatError&) {
    return false;
  } catch (const DamagedError&) {
    return false;
  }
}

// A fuzzer does not find the right checksum by itself.
std::string with_checksum(std::string bytes) {
  if (bytes.size() < kChecksumOffset + Checksum::kDigits) return bytes;
  bytes.replace(kChecksumOffset, Checksum::kDigits, Checksum::kDigits, '0');
  Checksum checksum;
  checksum.add(bytes.data(), bytes.size());
  return bytes.replace(kChecksumOffset, Checksum::kDigits, checksum.digits());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t count) {
  const std::string bytes(reinterpret_cast<const char*>(data), count);
  const MemoryFile file(bytes);
  check_summary(bytes, file.path());
  is_whole(file.path());
  if (bytes.find(kChecksumPrefix) == kLengthBytes) {
    const auto right = with_checksum(bytes);
    const MemoryFile whole(right);
    must(check_summary(right, whole.path()) == is_whole(whole.path()), "the right checksum is accepted");
  }
  return 0;
}
