// Who does what when: rank 0 reads and writes, in a thread of its own; all ranks wait only for what they
// need.
#include <fmt/format.h>
#include <functional>
#include <future>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <lockstep/error.h>
#include <lockstep/snapshot.h>

#include "base/error_text.h"
#include "base/log.h"
#include "snapshot/contents.h"
#include "snapshot/directory.h"
#include "snapshot/file_reader.h"
#include "snapshot/file_writer.h"
#include "snapshot/sharing.h"

namespace lockstep {

namespace {

using snapshot::Document;

// The random state of every rank, on rank 0.
std::vector<at::Tensor> gather_generators(ProcessGroup& group) {
  auto generator = at::detail::getDefaultCPUGenerator();
  at::Tensor state;
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state = generator.get_state();
  }
  return group.gather(state, 0);
}

// The newest that is whole; nothing if there is none at all.
std::optional<Document> read_newest(const snapshot::Directory& directory) {
  auto files = directory.list();
  std::string evidence;
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    try {
      auto document = snapshot::read_file(file->path);
      base::log_debug("resuming from {}", file->path.string());
      return document;
    } catch (const snapshot::NewerFormatError&) {
      throw;  // to pass over it would be to lose what it holds
    } catch (const SnapshotError& error) {
      base::log_warn("passing over a damaged snapshot: {}", error.what());
      if (evidence.empty()) evidence = error.what();
    }
  }
  if (files.empty()) return std::nullopt;
  throw SnapshotError(base::compose({.what = fmt::format("none of the {} snapshots in {} is whole",
                                                         files.size(), directory.path().string()),
                                     .evidence = evidence,
                                     .hint = "begin anew in another directory, or remove these files"}));
}

}  // namespace

struct Snapshots::Impl {
  Impl(std::filesystem::path path, std::shared_ptr<ProcessGroup> with, SnapshotOptions chosen)
      : directory(std::move(path)), group(std::move(with)), options(chosen) {}

  bool leads() const { return group->rank() == 0; }
  void wait();

  snapshot::Directory directory;
  const std::shared_ptr<ProcessGroup> group;
  const SnapshotOptions options;
  bool under_way = false;     // the same on all ranks: a save whose outcome they do not know yet
  std::future<void> writing;  // rank 0's
};

void Snapshots::Impl::wait() {
  if (!std::exchange(under_way, false)) return;
  snapshot::await_on_all(*group, &writing);
}

Snapshots::Snapshots(std::filesystem::path directory, std::shared_ptr<ProcessGroup> group,
                     SnapshotOptions options) {
  if (!group) throw UsageError("Snapshots was given no process group (a null pointer)");
  if (options.keep < 0) {
    throw UsageError(base::compose({.what = fmt::format("SnapshotOptions::keep is {}", options.keep),
                                    .hint = "how many snapshots are kept; 0 keeps all"}));
  }
  impl_ = std::make_unique<Impl>(std::move(directory), std::move(group), options);
  if (options.read_only) return;
  snapshot::agree(*impl_->group, [&] {
    if (impl_->leads()) impl_->directory.lock();
  });
}

Snapshots::Snapshots(Snapshots&&) noexcept = default;

Snapshots& Snapshots::operator=(Snapshots&& other) noexcept {
  Snapshots before(std::move(*this));  // whose destructor sees to what it was writing
  impl_ = std::move(other.impl_);
  return *this;
}

Snapshots::~Snapshots() {
  if (!impl_ || !impl_->writing.valid()) return;
  try {
    impl_->writing.get();
  } catch (const std::exception& error) {
    base::log_error("the last snapshot was not written: {}", error.what());
  }
}

void Snapshots::save(const std::vector<SnapshotPart>& parts, const Position& position) {
  auto& [directory, group, options, under_way, writing] = *impl_;
  if (options.read_only) {
    throw UsageError(base::compose({.what = "these snapshots are read-only",
                                    .where = directory.path().string(),
                                    .hint = "SnapshotOptions::read_only is for programs that only look"}));
  }
  impl_->wait();
  const auto generators = gather_generators(*group);
  Document document;
  snapshot::agree(*group, [&] {
    if (impl_->leads()) document = snapshot::capture(parts, position, generators);
  });
  under_way = true;
  if (impl_->leads()) {
    if (options.async) document = snapshot::copy_of(document);
    writing = std::async(std::launch::async, [document = std::move(document), impl = impl_.get()] {
      snapshot::write_file(document, impl->directory.next());
      impl->directory.remove_old(impl->options.keep);
    });
  }
  if (!options.async) impl_->wait();
}

Position Snapshots::resume(const std::vector<SnapshotPart>& parts) {
  impl_->wait();
  auto& group = *impl_->group;
  std::optional<Document> document;
  snapshot::run_on_rank_0(group, [&] { document = read_newest(impl_->directory); });
  document = snapshot::share(group, std::move(document));
  if (!document) return {};
  std::function<void()> restore;
  Position position;
  snapshot::agree(group, [&] {
    position = snapshot::position_of(document->about);
    restore = snapshot::prepare_restore(parts, *document, group.rank());
  });
  restore();
  return position;
}

void Snapshots::wait() { impl_->wait(); }

std::vector<SnapshotInfo> Snapshots::list() const {
  std::vector<SnapshotInfo> all;
  for (const auto& [sequence, path] : impl_->directory.list()) {
    try {
      const auto summary = snapshot::read_summary(path);
      all.push_back({.path = path,
                     .sequence = sequence,
                     .position = snapshot::position_of(summary.about),
                     .world_size = snapshot::world_size_of(summary.about),
                     .bytes = summary.bytes,
                     .saved = snapshot::saved_of(summary.about)});
    } catch (const SnapshotError& error) {
      base::log_debug("not listed: {}", error.what());
    }
  }
  return all;
}

std::optional<SnapshotInfo> Snapshots::latest() const {
  auto all = list();
  if (all.empty()) return std::nullopt;
  return std::move(all.back());
}

}  // namespace lockstep
