// Decodes any bytes as control messages of the agents. Encoding and decoding an accepted message must yield
// the same message again, on one line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "launch/control.h"

namespace {

template <class Message>
void survives(const std::optional<Message>& message, std::optional<Message> (*decode)(std::string_view)) {
  if (!message) return;
  const std::string line = lockstep::launch::encode(*message);
  if (line.find('\n') != std::string::npos || decode(line) != message) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::launch;
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  survives(decode_challenge(line), decode_challenge);
  survives(decode_hello(line), decode_hello);
  survives(decode_ack(line), decode_ack);
  survives(decode_welcome(line), decode_welcome);
  survives(decode_refused(line), decode_refused);
  survives(decode_event(line), decode_event);
  survives(decode_order(line), decode_order);
  decode_alive(line);
  return 0;
}
