#include "rendezvous/open_store.h"

#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/aside.h"
#include "base/env.h"
#include "base/error_text.h"
#include "base/host.h"
#include "base/log.h"
#include "base/net.h"
#include "base/token.h"
#include "compat/tcp_store.h"
#include "network/offer.h"
#include "rendezvous/foreign_store.h"
#include "store/client.h"
#include "store/server.h"

namespace lockstep::rendezvous {

namespace {

using namespace std::chrono_literals;

[[noreturn]] void bad_method(const std::string& init_method, const std::string& why) {
  throw UsageError(base::compose({.what = fmt::format("init_method \"{}\" is invalid", init_method),
                                  .evidence = why,
                                  .hint = "use env://, tcp://host:port or file:///path"}));
}

std::string where(const Identity& identity) {
  return fmt::format("rank {}/{}, host {}", identity.rank, identity.world_size, base::host_name());
}

// A store that this process has opened. Never closed: a group may be created again after
// destroy_process_group(), and the other ranks may still use the store when rank 0 has finished.
struct Opened {
  std::unique_ptr<store::Server> server;  // on rank 0
  KeyStorePtr keys;
};

std::string first_line(const std::string& message) { return message.substr(0, message.find("\nhint:")); }

// Connects to the store at `address`; waits until rank 0 has opened it.
KeyStorePtr join(const store::Address& address, const base::Token& token, const MeetingPoint& point,
                 const Identity& identity, base::Deadline deadline) {
  try {
    return c10::make_intrusive<KeyStore>(
        std::make_shared<store::Client>(address, token, identity.rank, deadline), "lockstep",
        deadline.budget());
  } catch (const TimeoutError& error) {
    throw TimeoutError(base::compose(
        {.what = "the job's meeting point does not answer",
         .where = fmt::format("{}, {}", where(identity), point.describe()),
         .evidence = first_line(error.what()),
         .hint = "check that rank 0 was started and is alive, that MASTER_ADDR and MASTER_PORT are right, "
                 "and that no firewall blocks the connection"}));
  }
}

Opened open_at_port(const MeetingPoint& point, const Identity& identity, base::Deadline deadline) {
  const auto token = base::Token::from_environment();
  auto address = point.one_machine ? store::Address::on_this_machine(point.port)
                                   : store::Address::anywhere(point.host, point.port);
  Opened opened;
  if (identity.rank == 0) {
    std::vector<base::Fd> listeners;
    listeners.push_back(store::listen_at(address));
    opened.server = std::make_unique<store::Server>(std::move(listeners), token);
    if (!point.one_machine) address.host = "127.0.0.1";
  }
  opened.keys = join(address, token, point, identity, deadline);
  return opened;
}

c10::intrusive_ptr<c10d::Store> open_file(const MeetingPoint& point, const Identity& identity) {
  const std::filesystem::path path(point.path);
  std::error_code ignored;
  if (!path.has_filename() || std::filesystem::is_directory(path, ignored) ||
      !std::filesystem::is_directory(path.has_parent_path() ? path.parent_path() : ".", ignored)) {
    throw UsageError(base::compose({.what = fmt::format("the ranks cannot meet at the file {}", point.path),
                                    .where = where(identity),
                                    .evidence = "it must be a file in a directory that exists",
                                    .hint = "create the directory, on a file system that all ranks see"}));
  }
  return c10::make_intrusive<c10d::FileStore>(point.path, identity.world_size);
}

// One of LibTorch's stores, from which the ranks learn where rank 0 has opened lockstep's store.
std::shared_ptr<ForeignStore> open_notice_board(const MeetingPoint& point, const Identity& identity,
                                                base::Deadline deadline) {
  auto opening = base::run_aside([point, identity, deadline]() -> c10::intrusive_ptr<c10d::Store> {
    if (!point.path.empty()) return open_file(point, identity);
    // c10d's own client prints a warning on stderr at each attempt. So wait here until the host accepts
    // connections.
    base::connect_to(point.host, point.port, deadline);
    return compat::join_tcp_store(point.host, point.port, deadline.budget());
  });
  if (opening.wait_for(deadline.remaining() + 100ms) != std::future_status::ready) {
    throw TimeoutError(base::compose({.what = "the job's meeting point does not answer",
                                      .where = fmt::format("{}, {}", where(identity), point.describe()),
                                      .hint = "look at the launcher's agent, which hosts it"}));
  }
  return std::make_shared<ForeignStore>(opening.get(), identity.rank);
}

// What rank 0 writes to it.
struct Notice {
  std::string machine;  // the one on which the Unix socket can be reached
  store::Address nearby, afar;
  std::string why_not_afar;
  std::string token;

  std::string encode() const {
    return nlohmann::json{{"machine", machine}, {"name", nearby.name},         {"host", afar.host},
                          {"port", afar.port},  {"why_no_host", why_not_afar}, {"token", token}}
        .dump();
  }
  static Notice decode(const std::string& text) {
    try {
      const auto json = nlohmann::json::parse(text);
      Notice notice;
      notice.machine = json.at("machine");
      notice.token = json.at("token");
      notice.nearby.name = json.at("name");
      notice.why_not_afar = json.at("why_no_host");
      notice.afar = store::Address::anywhere(json.at("host"), json.at("port"));
      return notice;
    } catch (const nlohmann::json::exception& error) {
      throw MismatchError(base::compose({.what = "the ranks do not use the same version of lockstep",
                                         .evidence = error.what(),
                                         .hint = "start the same build of the program on every machine"}));
    }
  }
};

// The address at which other machines reach rank 0: that of torchrun's agent. Empty, and the reason in `why`,
// if it is unknown.
std::string address_of_rank_0(const MeetingPoint& point, std::string& why) {
  if (!point.host.empty()) return point.one_machine ? "" : point.host;
  const auto offer = network::offer_of_this_process("");
  if (!offer.is_usable()) {
    why = fmt::format("{}: {}", offer.problem.what, offer.problem.evidence);
    return {};
  }
  const auto& rail = offer.rails.front();
  return rail.v4.address.empty() ? rail.v6.address : rail.v4.address;
}

Opened open_by_notice(const MeetingPoint& point, const Identity& identity, base::Deadline deadline) {
  const auto board = open_notice_board(point, identity, deadline);
  const auto key = [&](const std::string& name) {
    return fmt::format("lockstep/{}{}/{}", identity.job, identity.attempt, name);
  };
  if (board->add(key(fmt::format("claim/{}", identity.rank)), 1, deadline) != 1) {
    throw MismatchError(base::compose(
        {.what = fmt::format("two processes claim to be rank {} of {}", identity.rank, identity.world_size),
         .where = point.describe(),
         .evidence = fmt::format("another process arrived before this one (pid {})", ::getpid()),
         .hint = "give each process its own RANK; the file of a file:// meeting point must be "
                 "new for each job"}));
  }
  Opened opened;
  Notice notice;
  if (identity.rank == 0) {
    notice.machine = base::network_identity();
    notice.token = base::Token::random().text();
    notice.nearby.name = "lockstep/" + base::make_nonce();
    std::vector<base::Fd> listeners;
    listeners.push_back(store::listen_at(notice.nearby));
    if (const auto host = address_of_rank_0(point, notice.why_not_afar); !host.empty()) {
      listeners.push_back(base::listen_on(base::Reach::Everyone, 0));
      notice.afar = store::Address::anywhere(host, base::local_port(listeners.back()));
    }
    opened.server = std::make_unique<store::Server>(std::move(listeners), base::Token(notice.token));
    board->set(key("store"), notice.encode(), deadline);
  } else {
    notice = Notice::decode(board->get({key("store")}, deadline, {}).front());
  }
  const bool near = notice.machine == base::network_identity();
  if (!near && notice.afar.host.empty()) {
    throw UsageError(base::compose(
        {.what = "the ranks are on several machines, and the address of rank 0 is unknown",
         .where = fmt::format("{}, {}", where(identity), point.describe()),
         .evidence = notice.why_not_afar,
         .hint = "use tcp://host:port, or name the network interface in LOCKSTEP_SOCKET_IFNAME"}));
  }
  opened.keys =
      join(near ? notice.nearby : notice.afar, base::Token(notice.token), point, identity, deadline);
  return opened;
}

}  // namespace

std::string MeetingPoint::describe() const {
  return path.empty() ? fmt::format("store at {}", base::host_port(host, port))
                      : fmt::format("store in {}", path);
}

MeetingPoint meeting_point(const std::string& init_method, const Identity& identity) {
  MeetingPoint point;
  if (init_method == "env://") {
    point.host = identity.master_addr;
    point.port = identity.master_port;
    point.agent_hosts_store = identity.agent_hosts_store;
    point.one_machine = identity.local_world_size == identity.world_size || base::is_loopback(point.host) ||
                        point.host == "localhost";
    // The host name that a launcher sets for this machine need not resolve to loopback, where the store will
    // be.
    if (point.one_machine && !point.agent_hosts_store) point.host = "127.0.0.1";
  } else if (init_method.starts_with("tcp://")) {
    const std::string rest = init_method.substr(6);
    const auto colon = rest.rfind(':');
    if (colon == std::string::npos || colon == 0) bad_method(init_method, "a port is missing");
    const auto port = base::parse_int(rest.substr(colon + 1));
    if (!port || *port < 1 || *port > 65535)
      bad_method(init_method, "the port must be a number from 1 to 65535");
    point.host = base::without_brackets(rest.substr(0, colon));
    point.port = static_cast<uint16_t>(*port);
    point.one_machine = base::is_loopback(point.host) || point.host == "localhost";
    if (point.one_machine) point.host = "127.0.0.1";
  } else if (init_method.starts_with("file://")) {
    point.path = init_method.substr(7);
    if (!point.path.starts_with('/')) bad_method(init_method, "the path must be absolute");
  } else {
    bad_method(init_method, "the scheme is unknown");
  }
  return point;
}

KeyStorePtr open_store(const MeetingPoint& point, const Identity& identity, base::Deadline deadline) {
  static auto* const all = new std::map<std::string, Opened>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& opened = (*all)[fmt::format("{} as {}/{}", point.describe(), identity.rank, identity.world_size)];
  if (!opened.keys) {
    const bool direct = point.path.empty() && !point.agent_hosts_store;
    opened = direct ? open_at_port(point, identity, deadline) : open_by_notice(point, identity, deadline);
    base::log_debug("{} is open", point.describe());
  }
  return opened.keys;
}

}  // namespace lockstep::rendezvous
