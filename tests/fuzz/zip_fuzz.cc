// Reads any bytes as a .pt file: the entries of the zip, and the state dict in its pickle.
#include <string>

#include <lockstep/error.h>

#include "fuzz/target.h"
#include "snapshot/pt_contents.h"
#include "snapshot/zip_reader.h"

using namespace lockstep::snapshot;
using lockstep::fuzz::MemoryFile;
using lockstep::fuzz::must;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t count) {
  const std::string bytes(reinterpret_cast<const char*>(data), count);
  const MemoryFile file(bytes);
  try {
    const ZipReader zip(file.path());
    const auto& first = zip.first_name();
    if (first.empty()) return 0;
    must(zip.contains(first), "the first entry exists");
    const auto prefix = first.substr(0, first.find('/') + 1);
    if (!zip.contains(prefix + "data.pkl")) {
      must(zip.read_text(first).size() <= count, "an entry is no larger than the file");
      return 0;
    }
    const auto contents = read_pt_contents(zip.read_text(prefix + "data.pkl"), zip.file_size(),
                                           [&](const std::string& key) -> std::optional<uint64_t> {
                                             const auto entry = prefix + "data/" + key;
                                             if (!zip.contains(entry)) return std::nullopt;
                                             return zip.size(entry);
                                           });
    for (const auto& view : contents.views) zip.read_text(prefix + "data/" + view.storage);
  } catch (const lockstep::SnapshotError&) {
  } catch (const PtError&) {
  }
  return 0;
}
