// Sends any bytes to the store: from a caller without credentials, and from a member of the job.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "store/service.h"

namespace {

using namespace lockstep;
using store::Reader;
using store::Service;
using store::Writer;

void hear(Service& service, Service::Caller& caller, const std::string& bytes) {
  service.hear(caller, bytes.data(), bytes.size());
}

Service::Caller& admitted(Service& service, int rank) {
  auto& caller = service.add();
  Reader challenge(std::string_view(caller.outgoing).substr(4));
  challenge.text();
  challenge.number();
  const auto theirs = challenge.text();
  const auto mine = base::make_nonce();
  hear(service, caller,
       Writer().number(rank).text(mine).text(base::Token().prove("client", theirs, mine)).frame());
  if (!caller.admitted) std::abort();
  return caller;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  Service service{base::Token()};
  auto& stranger = service.add();
  hear(service, stranger, bytes);
  if (stranger.admitted) std::abort();  // the proof cannot be guessed

  auto& member = admitted(service, 1);
  auto& witness = admitted(service, 2);
  hear(service, member, bytes);
  // The same bytes in one valid frame, whatever they begin with.
  auto& other = admitted(service, 3);
  std::string frame(4, '\0');
  for (int i = 0; i < 4; ++i) frame[static_cast<size_t>(i)] = static_cast<char>(size >> (8 * i) & 0xff);
  hear(service, other, frame + bytes);
  service.answer_waiting();
  // Other members are not affected.
  hear(service, witness, Writer().number(7).number(static_cast<int64_t>(store::Ask::Count)).frame());
  if (witness.closed) std::abort();
  for (auto* caller : {&stranger, &member, &other}) service.end(*caller);
  return 0;
}
