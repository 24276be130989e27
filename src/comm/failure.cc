#include "comm/failure.h"

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
    group.store->fail(std::string(why.kind()) + '\n' + why.what());
  }
}

}  // namespace

void throw_first_error(const ProcessGroup::Impl& group) {
  const std::lock_guard lock(group.failure_mutex);
  base::throw_kind(group.failure->kind, group.failure->message, group.failure->culprits);
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
