// c10d's reconfigure: the backend leaves the ranks of this generation and connects with those of the next.
#include <algorithm>
#include <fmt/format.h>
#include <string_view>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "c10d_face/backend.h"

namespace lockstep::c10d_face {

Backend::WorkPtr Backend::change_members(const compat::NextMembers& next) {
  const auto refuse = [&](const std::string& evidence, const char* hint) {
    throw UsageError(
        base::compose({.what = "reconfigure() cannot change the members of the group",
                       .where = fmt::format("rank {}/{}, backend {}", rank_, size_, engine_->name()),
                       .evidence = evidence,
                       .hint = hint}));
  };
  if (std::string_view(engine_->name()) == "hybrid") {
    refuse("its ranks are on several machines, and lockstep changes members over shared memory only",
           "use PyTorch's own backend \"gloo\"");
  }
  if (!connect_) {
    refuse("the backend belongs to a lockstep::ProcessGroup",
           "make a backend of its own, with make_c10d_backend or in Python");
  }
  const auto& handles = next.handles;
  const auto mine = std::find(handles.begin(), handles.end(), handle_);
  if (mine == handles.end()) {
    refuse(fmt::format("the handle of this rank is not among the {} of the members", handles.size()),
           "pass what get_reconfigure_handle() returns on every member, and call this on members only");
  }
  if (std::set(handles.begin(), handles.end()).size() != handles.size()) {
    refuse("a handle is given twice", "pass one handle for each member");
  }
  if (!used_uuids_.insert(next.uuid).second) {
    refuse(fmt::format("the uuid {} was already used", next.uuid),
           "pass a new one, the same on all members, each time");
  }
  const int rank = static_cast<int>(mine - handles.begin());
  const int world_size = static_cast<int>(handles.size());
  const auto timeout = next.timeout.value_or(std::chrono::milliseconds(0));
  const auto deadline = base::Deadline::in(timeout.count() > 0 ? timeout : engine_->timeout());
  engine_ = connect_(fmt::format("generation/{}", next.uuid), rank, world_size, deadline);
  become(rank, world_size);
  return barrier({});
}

}  // namespace lockstep::c10d_face
