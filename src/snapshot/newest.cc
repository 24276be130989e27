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

// Tries the snapshots of a directory until one is taken: `take` returns true, or throws GoneError if a writer
// has removed the file. False if all of a listing that is still true were tried.
//
// A listing is not of one moment: a file that comes while another one goes may be missed together with it. So
// nothing is concluded from one that the next does not repeat.
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
      base::compose({.what = fmt::format("the snapshots in {} come and go faster than they can be opened",
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
      if (damaged.insert(path).second) base::log_warn("passing over a damaged snapshot: {}", error.what());
      if (evidence.empty()) evidence = error.what();
      return false;
    } catch (const GoneError&) {
      throw;
    } catch (const SnapshotError& error) {
      throw SnapshotError(
          fmt::format("{}; to go on from an older snapshot, move this one elsewhere", error.what()));
    }
  });
  if (!found && !damaged.empty()) {
    throw SnapshotError(base::compose({.what = fmt::format("none of the {} snapshots in {} is whole",
                                                           damaged.size(), directory.path().string()),
                                       .evidence = evidence,
                                       .hint = "begin anew in another directory, or remove these files"}));
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
