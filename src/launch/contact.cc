#include "launch/contact.h"

#include <algorithm>
#include <fmt/format.h>

#include "launch/control.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;

// Several keepalives per timeout, because a busy machine may delay some of them.
constexpr int kKeepalivesPerTimeout = 4;

}  // namespace

Contact::Contact(std::vector<std::unique_ptr<Connection>> connections, std::chrono::milliseconds node_timeout)
    : connections_(std::move(connections)), node_timeout_(node_timeout) {
  for (const auto& connection : connections_) {
    if (connection) connection->expect_line_every(node_timeout_);
  }
}

void Contact::send_to_all(const std::string& line) {
  for (const auto& connection : connections_) {
    if (connection) connection->send(line);
  }
}

void Contact::keep_alive() {
  if (!alive_at_.expired()) return;
  alive_at_ = base::Deadline::in(node_timeout_ / kKeepalivesPerTimeout);
  send_to_all(encode_alive());
}

std::vector<Contact::Lost> Contact::receive(const std::function<bool(size_t, const std::string&)>& on_line) {
  keep_alive();
  std::vector<Lost> lost;
  for (size_t peer = 0; peer < connections_.size(); ++peer) {
    auto& connection = connections_[peer];
    if (!connection) continue;
    connection->flush();
    // Receive before checking the timeout: if this process was stopped, lines of the peer are waiting here.
    connection->receive();
    std::string why;
    while (const auto line = connection->next_line()) {
      if (decode_alive(*line) || on_line(peer, *line)) continue;
      why = "it sent a line that is not part of the protocol";
      connection->close();
      break;
    }
    if (connection->open() && connection->silent_for() > node_timeout_) {
      why = fmt::format("it sent nothing for {:g} s: its machine, network or agent is down or stopped",
                        static_cast<double>(node_timeout_.count()) / 1000.0);
      connection->close();
    }
    if (connection->open()) continue;
    lost.push_back({peer, why.empty() ? connection->close_reason() : why});
    connection.reset();
  }
  return lost;
}

void Contact::add_to(std::vector<pollfd>& waiting) const {
  for (const auto& connection : connections_) {
    if (!connection) continue;
    const int events = POLLIN | (connection->wants_to_write() ? POLLOUT : 0);
    waiting.push_back({connection->fd(), static_cast<short>(events), 0});
  }
}

std::chrono::milliseconds Contact::longest_wait() const {
  std::chrono::milliseconds longest = 1h;
  for (const auto& connection : connections_) {
    if (!connection) continue;
    longest = std::min(
        {longest, alive_at_.remaining(), std::max(0ms, node_timeout_ - connection->silent_for()) + 1ms});
  }
  return longest;
}

}  // namespace lockstep::launch
