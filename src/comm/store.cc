#include "comm/store.h"

#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <mutex>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "base/host.h"
#include "base/log.h"
#include "base/net.h"
#include "compat/tcp_store.h"

namespace lockstep::comm {

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

[[noreturn]] void bad_method(const std::string& init_method, const std::string& why) {
  throw UsageError(base::compose({.what = fmt::format("init_method \"{}\" is not usable", init_method),
                                  .evidence = why,
                                  .hint = "use env://, tcp://host:port or file:///path"}));
}

std::string where(const Identity& identity) {
  return fmt::format("rank {}/{}, host {}", identity.rank, identity.world_size, base::host_name());
}

StorePtr open_file(const MeetingPoint& point, const Identity& identity) {
  const std::filesystem::path path(point.path);
  std::error_code ignored;
  if (!path.has_filename() || std::filesystem::is_directory(path, ignored) ||
      !std::filesystem::is_directory(path.has_parent_path() ? path.parent_path() : ".", ignored)) {
    throw UsageError(base::compose({.what = fmt::format("cannot meet at the file {}", point.path),
                                    .where = where(identity),
                                    .evidence = "it must be a file in a directory that exists",
                                    .hint = "create the directory, on a file system that all ranks see"}));
  }
  return c10::make_intrusive<c10d::FileStore>(point.path, identity.world_size);
}

StorePtr open_tcp(const MeetingPoint& point, const Identity& identity, base::Deadline deadline) {
  if (identity.rank == 0 && !point.agent_hosts_store) {
    const auto reach = point.one_machine ? base::Reach::ThisMachine : base::Reach::Everyone;
    return compat::host_tcp_store(base::listen_on(reach, point.port), deadline.budget());
  }
  try {
    // c10d's own client warns on stderr at each attempt while rank 0 is still on its way. So wait here until
    // somebody answers, and only then let it connect.
    base::connect_to(point.host, point.port, deadline);
  } catch (const TimeoutError& error) {
    throw TimeoutError(base::compose(
        {.what = "the job's meeting point does not answer",
         .where = fmt::format("{}, {}", where(identity), point.describe()),
         .evidence = std::string(error.what()).substr(0, std::string(error.what()).find("\nhint:")),
         .hint = "check that rank 0 was started and is alive, that MASTER_ADDR and MASTER_PORT are right, "
                 "and that no "
                 "firewall stands between"}));
  }
  return compat::join_tcp_store(point.host, point.port, deadline.budget());
}

}  // namespace

std::string MeetingPoint::describe() const {
  return path.empty() ? fmt::format("store at {}:{}", host, port) : fmt::format("store in {}", path);
}

MeetingPoint meeting_point(const std::string& init_method, const Identity& identity) {
  MeetingPoint point;
  if (init_method == "env://") {
    point.host = identity.master_addr;
    point.port = identity.master_port;
    point.agent_hosts_store = identity.agent_hosts_store;
    point.one_machine = identity.local_world_size == identity.world_size || base::is_loopback(point.host) ||
                        point.host == "localhost";
    // The name that a launcher gives for this machine need not lead to loopback, where the store will be.
    if (point.one_machine && !point.agent_hosts_store) point.host = "127.0.0.1";
  } else if (init_method.starts_with("tcp://")) {
    const std::string rest = init_method.substr(6);
    const auto colon = rest.rfind(':');
    if (colon == std::string::npos || colon == 0) bad_method(init_method, "a port is missing");
    const auto port = base::parse_int(rest.substr(colon + 1));
    if (!port || *port < 1 || *port > 65535)
      bad_method(init_method, "the port must be a number from 1 to 65535");
    point.host = rest.substr(0, colon);
    if (point.host.starts_with('[') && point.host.ends_with(']'))
      point.host = point.host.substr(1, point.host.size() - 2);
    point.port = static_cast<uint16_t>(*port);
    point.one_machine = base::is_loopback(point.host) || point.host == "localhost";
    if (point.one_machine) point.host = "127.0.0.1";
  } else if (init_method.starts_with("file://")) {
    point.path = init_method.substr(7);
    if (!point.path.starts_with('/')) bad_method(init_method, "the path must be absolute");
  } else {
    bad_method(init_method, "its scheme is not known");
  }
  return point;
}

StorePtr open_store(const MeetingPoint& point, const Identity& identity, base::Deadline deadline) {
  // Never closed: a group may be made again after destroy_process_group(), and rank 0's peers may still be
  // asking while it is done itself.
  static auto* const opened = new std::map<std::string, StorePtr>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& store = (*opened)[fmt::format("{} as {}/{}", point.describe(), identity.rank, identity.world_size)];
  if (!store) {
    store = point.path.empty() ? open_tcp(point, identity, deadline) : open_file(point, identity);
    base::log_debug("{} is open", point.describe());
  }
  return store;
}

}  // namespace lockstep::comm
