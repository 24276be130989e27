#include "compat/tcp_store.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <thread>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/version.h>

#include <lockstep/error.h>

#include "base/deadline.h"
#include "base/env.h"
#include "base/error_text.h"
#include "base/net.h"

namespace lockstep::compat {

namespace {

c10d::TCPStoreOptions options_for(uint16_t port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = timeout;
#if TORCH_VERSION_MAJOR >= 2
  options.useLibUV = false;  // Debian's builds have no libuv
#endif
  return options;
}

#if TORCH_VERSION_MAJOR < 2
// The descriptor on which this process listens at `port`.
int listening_descriptor(uint16_t port) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const auto fd = base::parse_int(entry.path().filename().string());
    if (!fd) continue;
    int listening = 0;
    socklen_t length = sizeof listening;
    if (::getsockopt(static_cast<int>(*fd), SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 ||
        !listening)
      continue;
    base::Fd borrowed(static_cast<int>(*fd));
    const uint16_t found = base::local_port(borrowed);
    borrowed.release();
    if (found == port) return static_cast<int>(*fd);
  }
  throw SystemError(
      base::compose({.what = "cannot find the socket of the store that was just opened",
                     .evidence = fmt::format("no descriptor below /proc/self/fd listens at port {}", port),
                     .hint = "is /proc mounted?"}));
}
#endif

}  // namespace

#if TORCH_VERSION_MAJOR >= 2

c10::intrusive_ptr<c10d::Store> host_tcp_store(base::Fd listener, std::chrono::milliseconds timeout) {
  auto options = options_for(base::local_port(listener), timeout);
  options.isServer = true;
  options.masterListenFd = listener.release();
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

#else

// Until the store has accepted the connections it made to itself: closing a socket resets those that still
// wait.
void wait_until_all_accepted(int listening) {
  const auto deadline = base::Deadline::in(std::chrono::seconds(10));
  for (;;) {
    tcp_info info{};
    socklen_t length = sizeof info;
    // For a listening socket, this field counts the connections that nobody has accepted yet.
    if (::getsockopt(listening, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_unacked == 0) return;
    if (deadline.expired())
      throw TimeoutError("the store that was just opened does not accept its own connections");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// LibTorch 1.13 opens the store's socket itself, always on all interfaces. So let it open any port, and put
// ours in the place of its socket: the store's thread knows the socket by its descriptor only, and dup3
// exchanges what a descriptor stands for in one step. The thread is waiting in poll() at that moment, on the
// old socket; the call that follows wakes it, and from then on it waits on ours.
c10::intrusive_ptr<c10d::Store> host_tcp_store(base::Fd listener, std::chrono::milliseconds timeout) {
  auto options = options_for(0, timeout);
  options.isServer = true;
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const int theirs = listening_descriptor(store->getPort());
  wait_until_all_accepted(theirs);
  ::fcntl(listener.get(), F_SETFL, ::fcntl(theirs, F_GETFL));
  if (::dup3(listener.get(), theirs, O_CLOEXEC) < 0) {
    throw SystemError(base::compose({.what = "cannot move the store to its port",
                                     .where = fmt::format("port {}", base::local_port(listener)),
                                     .evidence = base::errno_text(errno)}));
  }
  store->add("lockstep/awake", 1);
  return store;
}

#endif

c10::intrusive_ptr<c10d::Store> join_tcp_store(const std::string& host, uint16_t port,
                                               std::chrono::milliseconds timeout) {
  return c10::make_intrusive<c10d::TCPStore>(host, options_for(port, timeout));
}

}  // namespace lockstep::compat
