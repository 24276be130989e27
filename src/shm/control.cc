#include "shm/control.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/host.h"

namespace lockstep::shm {

namespace {

// The size of the first call of an exchange. Most exchanges need only one.
constexpr size_t kFirstBytes = 512;
constexpr size_t kFirstPayload = kFirstBytes - sizeof(AgreementHeader);
// The payload of each further call. Small enough to be inline.
constexpr size_t kNextPayload = 7168;
static_assert(sizeof(AgreementHeader) + kNextPayload <= kInlineBytes);

AgreementHeader header_of(const char* label, size_t bytes) {
  AgreementHeader header{};
  std::strncpy(header.label, label, sizeof(header.label) - 1);
  header.bytes = bytes;
  return header;
}

}  // namespace

Control::Control(std::shared_ptr<Endpoint> lane)
    : comm::Control(lane->rank(), lane->world_size()), lane_(std::move(lane)) {}

Control::~Control() { lane_->retire(); }

void Control::gather(std::string_view mine, std::string& all) {
  all.resize(mine.size() * world_size());
  Request request;
  request.kind = Kind::Agreement;
  request.count = mine.size();
  request.give.push_back({reinterpret_cast<std::byte*>(const_cast<char*>(mine.data())), mine.size()});
  for (int rank = 0; rank < world_size(); ++rank) {
    request.take.push_back({reinterpret_cast<std::byte*>(all.data() + rank * mine.size()), mine.size()});
  }
  Call call(request);
  call.knows_of_failure = group_has_failed();
  lane_->run(call);
}

// Every call starts with the label, which errors on other ranks print. The first call contains the total
// number of bytes of each rank. Bytes that do not fit follow in further calls, as many as the longest
// contribution needs.
std::vector<std::string> Control::exchange_bytes(const char* label, std::string_view mine) {
  const auto header = header_of(label, mine.size());
  std::string message, all;
  const auto exchange = [&](size_t from, size_t room) {
    message.assign(sizeof header + room, '\0');
    std::memcpy(message.data(), &header, sizeof header);
    if (from < mine.size()) {
      std::memcpy(message.data() + sizeof header, mine.data() + from, std::min(room, mine.size() - from));
    }
    gather(message, all);
  };
  exchange(0, kFirstPayload);
  std::vector<std::string> result(world_size());
  size_t longest = 0;
  for (int rank = 0; rank < world_size(); ++rank) {
    AgreementHeader theirs;
    std::memcpy(&theirs, all.data() + rank * kFirstBytes, sizeof theirs);
    if (std::memcmp(theirs.label, header.label, sizeof theirs.label) != 0) {
      theirs.label[sizeof theirs.label - 1] = '\0';
      throw MismatchError(base::compose(
          {.what = "the ranks do not make the same call",
           .where = fmt::format("rank {}/{}, host {}", this->rank(), world_size(), base::host_name()),
           .evidence = fmt::format("this rank is in {}, {} in {}", label, lane_->name_of(rank), theirs.label),
           .hint = "all ranks must make the same calls in the same order"}));
    }
    result[rank].resize(theirs.bytes);
    longest = std::max<size_t>(longest, theirs.bytes);
  }
  const auto take = [&](size_t from, size_t room) {
    for (int rank = 0; rank < world_size(); ++rank) {
      auto& theirs = result[rank];
      if (from >= theirs.size()) continue;
      std::memcpy(theirs.data() + from, all.data() + rank * (sizeof header + room) + sizeof header,
                  std::min(room, theirs.size() - from));
    }
  };
  take(0, kFirstPayload);
  for (size_t from = kFirstPayload; from < longest; from += kNextPayload) {
    exchange(from, kNextPayload);
    take(from, kNextPayload);
  }
  return result;
}

}  // namespace lockstep::shm
