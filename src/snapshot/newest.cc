#include "snapshot/newest.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>
#include <string>
#include <vector>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/log.h"
#include "snapshot/file_reader.h"

namespace lockstep::snapshot {

namespace {

// Calls `take` with the snapshots of a directory, newest first, until it returns true. `take` throws
// GoneError if a writer has removed the file. Returns false if it returned false for all files of a listing
// that is still valid.
//
// Listing a directory is not atomic: if one file is added and another removed meanwhile, the listing may
// contain neither. So a listing is trusted only if the next one is the same.
bool take_first(const Directory& directory, const std::function<bool(const std::filesystem::path&)>& take) {
  constexpr int kMostListings = 1000;
  std::optional<std::vector<int64_t>> tried;
  for (int i = 0; i < kMostListings; ++i) {
    const auto files = directory.list();
    std::vector<int64_t> numbers;
    for (const auto& file : files) numbers.push_back(file.sequence);
    if (tried == numbers) return false;
    tried = std::move(numbers);
    try {
      for (auto file = files.rbegin(); file != files.rend(); ++file) {
        if (take(file->path)) return true;
      }
    } catch (const GoneError&) {
      tried.reset();
    }
  }
  throw SnapshotError(
      base::compose({.what = fmt::format("the snapshots in {} are replaced faster than they can be opened",
                                         directory.path().string()),
                     .hint = "keep more of them (SnapshotOptions::keep), or save less often"}));
}

}  // namespace

std::optional<Document> read_newest(const Directory& directory) {
  std::optional<Document> document;
  std::set<std::filesystem::path> damaged;
  std::string evidence;
  const bool found = take_first(directory, [&](const std::filesystem::path& path) {
    try {
      document = read_file(path);
      base::log_debug("resuming from {}", path.string());
      return true;
    } catch (const DamagedError& error) {
      if (damaged.insert(path).second) base::log_warn("skipping a damaged snapshot: {}", error.what());
      if (evidence.empty()) evidence = error.what();
      return false;
    } catch (const GoneError&) {
      throw;
    } catch (const SnapshotError& error) {
      throw SnapshotError(
          fmt::format("{}; to continue from an older snapshot, move this one elsewhere", error.what()));
    }
  });
  if (!found && !damaged.empty()) {
    throw SnapshotError(base::compose({.what = fmt::format("none of the {} snapshots in {} is intact",
                                                           damaged.size(), directory.path().string()),
                                       .evidence = evidence,
                                       .hint = "start over in another directory, or remove these files"}));
  }
  return document;
}

bool with_newest(const Directory& directory, const std::function<void(const std::filesystem::path&)>& use) {
  return take_first(directory, [&](const std::filesystem::path& path) {
    use(path);
    return true;
  });
}

}  // namespace lockstep::snapshot
