#include "comm/failure.h"

#include <algorithm>
#include <fmt/format.h>
#include <sstream>
#include <unistd.h>

#include "base/error_text.h"
#include "base/note.h"
#include "comm/purpose.h"

namespace lockstep::comm {

namespace {

// Only the first error is recorded, here and by the launcher.
void remember(ProcessGroup::Impl& group, const ProcessGroup::Impl::Failure& failure) {
  const std::lock_guard lock(group.failure_mutex);
  if (group.failure) return;
  group.failure = failure;
  group.failed.store(true, std::memory_order_release);
  // The launcher uses the ranks of the job, not those of a group.
  base::Note note{failure.kind, failure.message, {}};
  for (const int rank : failure.culprits) note.culprits.push_back(group.ranks.at(rank).rank);
  base::write_note(note);
}

void publish(ProcessGroup::Impl& group, const Error& why) {
  group.transport->fail(why);
  if (!group.transport->reports_failures() && group.store) {
    publish_failure(group, why);
  }
}

}  // namespace

// The kind and the culprits are one line; the message follows.
void publish_failure(ProcessGroup::Impl& group, const Error& why) noexcept {
  std::string text(why.kind());
  for (const int rank : why.culprits()) text += ' ' + std::to_string(rank);
  group.store->fail(text + '\n' + why.what());
}

ProcessGroup::Impl::Failure read_failure(const store::Failure& published) {
  const auto& text = published.text;
  const auto end_of_line = std::min(text.find('\n'), text.size());
  std::istringstream line(text.substr(0, end_of_line));
  ProcessGroup::Impl::Failure failure;
  line >> failure.kind;
  for (int rank = 0; line >> rank;) failure.culprits.push_back(rank);
  if (end_of_line < text.size()) failure.message = text.substr(end_of_line + 1);
  return failure;
}

void throw_first_error(const ProcessGroup::Impl& group) {
  const std::lock_guard lock(group.failure_mutex);
  base::throw_kind(group.failure->kind, group.failure->message, group.failure->culprits);
}

void refuse_if_forked(const ProcessGroup::Impl& group) {
  if (::getpid() == group.made_by) return;
  throw UsageError(base::compose(
      {.what = "a forked process cannot use the groups of its parent",
       .where = fmt::format("rank {}/{}, host {}, {}, backend {}", group.rank, group.world_size,
                            group.ranks.at(group.rank).host, group.name, group.backend),
       .evidence = fmt::format("the group was made in process {}; this is its child, process {}",
                               group.made_by, ::getpid()),
       .hint = "communicate in the parent only, or make a new group in the child, after the fork"}));
}

void end_group(ProcessGroup::Impl& group, const Error& why) {
  remember(group, {std::string(why.kind()), why.what(), why.culprits()});
  publish(group, why);
}

void throw_failure(ProcessGroup::Impl& group) {
  try {
    throw;
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    remember(group, {std::string(error.kind()), Purpose::before(error.what()), error.culprits()});
  } catch (const std::exception& error) {
    remember(group, {"Error", Purpose::before(error.what()), {}});
  } catch (...) {
    remember(group, {"Error", Purpose::before(base::kNoMessage), {}});
  }
  throw_first_error(group);
}

void throw_control_failure(ProcessGroup::Impl& group) {
  try {
    throw_failure(group);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    publish(group, error);
    throw;
  }
}

}  // namespace lockstep::comm
