// Coordinates the ranks: rank 0 reads and writes in a thread of its own, and the ranks wait only for the
// results they need.
#include <fmt/format.h>
#include <functional>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <lockstep/error.h>
#include <lockstep/snapshot.h>

#include "base/error_text.h"
#include "base/host.h"
#include "base/log.h"
#include "comm/purpose.h"
#include "snapshot/about.h"
#include "snapshot/background_task.h"
#include "snapshot/contents.h"
#include "snapshot/directory.h"
#include "snapshot/file_writer.h"
#include "snapshot/newest.h"
#include "snapshot/settings.h"
#include "snapshot/sharing.h"
#include "snapshot/stored_file.h"

namespace lockstep {

namespace {

using snapshot::Document;

at::Tensor generator_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

std::optional<Document> read_to_resume(const snapshot::Directory& directory, const ProcessGroup& group) {
  try {
    return snapshot::read_newest(directory);
  } catch (const SnapshotError& error) {
    throw SnapshotError(
        base::compose({.what = "cannot resume; nothing was changed",
                       .where = fmt::format("rank 0 of {}, host {}", group.world_size(), base::host_name()),
                       .evidence = error.what()}));
  }
}

}  // namespace

struct Snapshots::Impl {
  Impl(std::filesystem::path path, std::shared_ptr<ProcessGroup> with, SnapshotOptions chosen)
      : directory(std::move(path)), group(std::move(with)), options(chosen) {}

  bool leads() const { return group->rank() == 0; }
  void wait();
  // Runs `mine` on all ranks like snapshot::agree, and logs a warning if the ranks' settings differ. Returns
  // the settings of this rank.
  snapshot::Settings agree_with_settings(const std::vector<SnapshotPart>& parts,
                                         const std::function<void()>& mine);

  snapshot::Directory directory;
  const std::shared_ptr<ProcessGroup> group;
  const SnapshotOptions options;
  bool under_way = false;  // the same on all ranks: a save has started whose result is not known yet
  bool warned = false;     // the same on all ranks: a warning about different settings was logged
  snapshot::BackgroundTask writing;  // on rank 0
};

void Snapshots::Impl::wait() {
  if (!std::exchange(under_way, false)) return;
  snapshot::await_on_all(*group, writing);
}

snapshot::Settings Snapshots::Impl::agree_with_settings(const std::vector<SnapshotPart>& parts,
                                                        const std::function<void()>& mine) {
  snapshot::Settings settings;
  const bool alike = snapshot::agree_and_compare(*group, [&] {
    mine();
    settings = snapshot::settings_of(parts);
    return snapshot::digest_of(settings);
  });
  if (!std::exchange(warned, !alike) && !alike) snapshot::warn_of_differences(*group, settings);
  return settings;
}

Snapshots::Snapshots(std::filesystem::path directory, std::shared_ptr<ProcessGroup> group,
                     SnapshotOptions options) {
  if (!group) throw UsageError("Snapshots was given no process group (a null pointer)");
  if (options.keep < 0) {
    throw UsageError(base::compose({.what = fmt::format("SnapshotOptions::keep is {}", options.keep),
                                    .hint = "pass the number of snapshots to keep; 0 keeps all"}));
  }
  impl_ = std::make_unique<Impl>(std::move(directory), std::move(group), options);
  if (options.read_only) return;
  const comm::Purpose purpose("Snapshots construction");
  snapshot::agree(*impl_->group, [&] {
    if (impl_->leads()) impl_->directory.lock();
  });
}

Snapshots::Snapshots(Snapshots&&) noexcept = default;

Snapshots& Snapshots::operator=(Snapshots&& other) noexcept {
  Snapshots before(std::move(*this));  // its destructor waits for a running write
  impl_ = std::move(other.impl_);
  return *this;
}

Snapshots::~Snapshots() {
  if (!impl_ || !impl_->writing.pending()) return;
  try {
    impl_->writing.get();
  } catch (const std::exception& error) {
    base::log_error("the last snapshot was not written: {}", error.what());
  }
}

void Snapshots::save(const std::vector<SnapshotPart>& parts, const Position& position) {
  auto& [directory, group, options, under_way, warned, writing] = *impl_;
  if (options.read_only) {
    throw UsageError(base::compose({.what = "these snapshots are read-only",
                                    .where = directory.path().string(),
                                    .hint = "SnapshotOptions::read_only is for programs that only read"}));
  }
  const comm::Purpose purpose("Snapshots::save");
  impl_->wait();
  at::Tensor generator;
  impl_->agree_with_settings(parts, [&] { generator = generator_state(); });
  const auto generators = group->gather(generator, 0);
  const auto gathered = snapshot::gather(parts);
  Document document;
  snapshot::agree(*group, [&] {
    if (impl_->leads()) document = snapshot::capture(gathered, position, generators);
  });
  under_way = true;
  if (impl_->leads()) {
    writing = snapshot::BackgroundTask::start([&] {
      if (impl_->options.async) document = snapshot::copy_of(document);
      return [document = std::move(document), impl = impl_.get()] {
        impl->directory.check_lock();
        snapshot::write_file(document, impl->directory.next());
        impl->directory.remove_old(impl->options.keep);
      };
    });
  }
  if (!options.async) impl_->wait();
}

Position Snapshots::resume(const std::vector<SnapshotPart>& parts) {
  const comm::Purpose purpose("Snapshots::resume");
  impl_->wait();
  auto& group = *impl_->group;
  const auto before = impl_->agree_with_settings(parts, [] {});
  std::optional<Document> document;
  snapshot::run_on_rank_0(group, [&] { document = read_to_resume(impl_->directory, group); });
  document = snapshot::share(group, std::move(document));
  if (!document) return {};
  std::function<void()> restore;
  Position position;
  snapshot::agree(group, [&] {
    position = snapshot::position_of(document->about);
    restore = snapshot::prepare_restore(parts, *document, group.rank());
  });
  // It does not fail by itself. If the system fails, all ranks get the error.
  snapshot::agree(group, restore);
  if (impl_->leads()) snapshot::warn_of_other_rates(parts, before);
  return position;
}

void Snapshots::wait() {
  const comm::Purpose purpose("Snapshots::wait");
  impl_->wait();
}

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
    } catch (const snapshot::DamagedError& error) {
      base::log_debug("not listed: {}", error.what());
    } catch (const snapshot::GoneError&) {
      // A writer has removed it in the meantime.
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
