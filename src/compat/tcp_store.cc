#include "compat/tcp_store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/version.h>

namespace lockstep::compat {

c10::intrusive_ptr<c10d::Store> join_tcp_store(const std::string& host, uint16_t port,
                                               std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = timeout;
#if TORCH_VERSION_MAJOR >= 2
  options.useLibUV = false;  // Debian's builds have no libuv
#endif
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace lockstep::compat
