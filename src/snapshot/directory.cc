#include "snapshot/directory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <fmt/format.h>
#include <optional>
#include <string_view>
#include <system_error>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "snapshot/hidden_file.h"

namespace lockstep::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kBegin = "snapshot-";
constexpr std::string_view kEnd = ".safetensors";
constexpr int64_t kMostSequence = 999'999'999'999;

std::string name_of(int64_t sequence) { return fmt::format("{}{:08}{}", kBegin, sequence, kEnd); }

// The number in a name; nothing unless name_of() returns exactly this name for it.
std::optional<int64_t> sequence_of(std::string_view name) {
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  if (name.size() <= kBegin.size() + kEnd.size()) return std::nullopt;
  const auto digits = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  int64_t sequence = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), sequence);
  if (sequence < 0 || sequence > kMostSequence || name_of(sequence) != name) return std::nullopt;
  return sequence;
}

// Whether it is a hidden file that the writer of any snapshot has left.
bool is_leftover(std::string_view file) {
  const auto end = file.find(kEnd);
  if (end == std::string_view::npos || !file.starts_with('.')) return false;
  const auto name = file.substr(1, end + kEnd.size() - 1);
  return sequence_of(name) && is_leftover_of(file, name);
}

[[noreturn]] void fail(const std::string& what, std::error_code error, const char* hint) {
  throw SnapshotError(
      base::compose({.what = what, .evidence = base::errno_text(error.value()), .hint = hint}));
}

std::vector<std::string> names_in(const fs::path& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator file(path, error), end; !error && file != end; file.increment(error)) {
    names.push_back(file->path().filename().string());
  }
  std::error_code ignored;
  const bool dangling = fs::is_symlink(fs::symlink_status(path, ignored));
  if (error == std::errc::no_such_file_or_directory && !dangling) return {};
  if (error) {
    fail(fmt::format("cannot list the snapshots in {}", path.string()), error,
         "use a directory that this user may read");
  }
  return names;
}

void make_directory(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> missing;
  for (auto ancestor = path; !fs::exists(ancestor, error) && ancestor.has_relative_path();) {
    missing.push_back(ancestor);
    ancestor = ancestor.parent_path();
  }
  fs::create_directories(path, error);
  if (error) {
    fail(fmt::format("cannot create the directory {} for snapshots", path.string()), error,
         "use a directory that this user may write to");
  }
  // The entry of a new directory is on disk only after a sync of its parent.
  for (const auto& made : missing) {
    const base::Fd parent(::open(made.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (parent) ::fsync(parent.get());
  }
}

}  // namespace

Directory::Directory(fs::path path) {
  if (path.empty()) {
    throw UsageError(
        base::compose({.what = "the directory for snapshots has no name", .hint = "pass a path: \"run1\""}));
  }
  // Absolute, so that the working directory may change later.
  path_ = fs::absolute(path).lexically_normal();
  if (!path_.has_filename() && path_.has_relative_path()) path_ = path_.parent_path();
}

std::vector<Numbered> Directory::list() const {
  std::vector<Numbered> snapshots;
  for (const auto& name : names_in(path_)) {
    if (const auto sequence = sequence_of(name)) snapshots.push_back({*sequence, path_ / name});
  }
  std::sort(snapshots.begin(), snapshots.end(),
            [](const Numbered& a, const Numbered& b) { return a.sequence < b.sequence; });
  return snapshots;
}

void Directory::lock() {
  if (lock_) return;
  make_directory(path_);
  lock_ = std::make_unique<DirectoryLock>(path_);
  if (lock_->excludes_others()) remove_leftovers();
}

void Directory::check_lock() {
  if (!lock_) throw UsageError("the directory must be locked before snapshots are written to it");
  lock_->check();
}

fs::path Directory::next() const {
  int64_t greatest = 0;
  for (const auto& name : names_in(path_)) greatest = std::max(greatest, sequence_of(name).value_or(0));
  if (greatest == kMostSequence) {
    throw SnapshotError(
        base::compose({.what = fmt::format("the snapshots in {} have run out of numbers", path_.string()),
                       .where = name_of(greatest),
                       .hint = "rename or remove that file"}));
  }
  return path_ / name_of(greatest + 1);
}

void Directory::remove_old(int keep) {
  check_lock();
  if (keep <= 0) return;
  auto snapshots = list();
  // Entries that are not files, or cannot be inspected now, are neither counted nor removed.
  std::erase_if(snapshots, [](const Numbered& snapshot) {
    std::error_code error;
    return !fs::is_regular_file(snapshot.path, error);
  });
  snapshots.resize(snapshots.size() - std::min(snapshots.size(), static_cast<size_t>(keep)));
  for (const auto& old : snapshots) {
    std::error_code error;
    fs::remove(old.path, error);
    // Not an error: the new snapshot is written.
    if (error) base::log_warn("cannot remove the old snapshot {}: {}", old.path.string(), error.message());
  }
}

void Directory::remove_leftovers() const {
  for (const auto& name : names_in(path_)) {
    if (!is_leftover(name)) continue;
    std::error_code error;
    fs::remove(path_ / name, error);
    if (error) {
      base::log_warn("cannot remove the unfinished snapshot {}: {}", (path_ / name).string(),
                     error.message());
    } else {
      base::log_info("removed the unfinished snapshot {}", (path_ / name).string());
    }
  }
}

}  // namespace lockstep::snapshot
