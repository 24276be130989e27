// The byte map of one rank's segment: what ranks read and write in each other's memory. docs/shm-layout.md
// draws it.
//
// A segment has two lanes, each with words and calls of its own: one for data, one for the control channel.
// A lane that has failed says nothing of the other.
//
// Words that ranks write at their own pace stand on lines of their own. Between writing a word that somebody
// may sleep for and looking for sleepers there is a full fence: "publish, then look for sleepers" on one side
// and "announce the sleep, then look again" on the other cannot both miss (bell.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/segment.h"

namespace lockstep::shm {

// Two lines: the processor fetches them in pairs.
inline constexpr size_t kApart = 128;

inline constexpr int kMaxWorld = 256;
// Collectives of one group that may have begun on some rank and not have ended on all.
inline constexpr uint64_t kCallsInFlight = 16;
// Staging slots of a rank: how many rounds the fastest rank may be ahead of the slowest.
inline constexpr uint64_t kStagingSlots = 4;
// What a slot holds. Small enough that what a rank stages is in its cache still when it reduces it; large
// when ranks take turns on the cores, where each round costs a change of process.
inline constexpr size_t kChunkBytes = size_t{128} << 10;
inline constexpr size_t kCrowdedChunkBytes = size_t{1} << 20;

struct alignas(kApart) Word {
  std::atomic<uint64_t> value;
};

// Where a rank sleeps; see bell.h.
struct alignas(kApart) BellWords {
  std::atomic<uint32_t> rung;
  std::atomic<uint32_t> sleepers;
};

// Where the bytes are that a rank gives to a collective.
enum class Where : uint8_t { Nowhere, Inline, Registered, Staged };

// A rank's word that it has come to a collective, and all that the others need to know of it.
struct CallWords {
  std::atomic<uint64_t> number;  // the call's number plus one; written last
  uint64_t count;    // elements; what it counts depends on the kind, and all ranks must agree on it
  uint64_t bytes;    // given by this rank, in all
  uint64_t largest;  // the largest piece that this rank gives to any one rank
  uint64_t offset;   // Where::Registered: of the first byte, in the memory of the giver's process
  int32_t root;
  uint8_t kind;
  uint8_t dtype;  // c10::ScalarType
  uint8_t op;     // ReduceOp
  Where where;
};
static_assert(sizeof(CallWords) == 48);

// A call and, behind it, what it gives, if that is small: 16 bytes on the call's own line.
inline constexpr size_t kCallSlotBytes = 8192;
inline constexpr size_t kInlineBytes = kCallSlotBytes - sizeof(CallWords);
struct alignas(64) CallSlot {
  CallWords call;
  alignas(16) std::byte bytes[kInlineBytes];
};
static_assert(sizeof(CallSlot) == kCallSlotBytes);

// The chunks of a collective that every rank can work on. Both words hold the call's number plus one in their
// upper half and a count in the lower, so that they need no clearing. Rank 0's are the ones that are used.
struct ClaimWords {
  Word taken;
  Word done;
};

// A message to one rank: the sender writes an envelope and raises `posted`; the receiver copies the envelope
// and raises `taken`.
struct Envelope {
  int32_t tag;
  uint8_t dtype;
  bool registered;  // the payload is in the memory of the sender's process, or else in its segment
  uint64_t bytes;
  uint64_t payload;   // offset there
  uint64_t delivery;  // offset of a DeliveryWords in the sender's segment
};
inline constexpr uint64_t kEnvelopes = 16;
struct Outbox {
  Word posted;
  Word taken;
  Envelope envelopes[kEnvelopes];
};

// What becomes of a message, in the sender's segment.
enum class Delivery : uint32_t { Posted, Received };
struct DeliveryWords {
  std::atomic<Delivery> state;
};

// The first error of a rank, for the others to read.
inline constexpr size_t kFailureTextBytes = 2048;
struct FailureWords {
  std::atomic<uint32_t> present;  // written last
  char kind[28];                  // Error::kind()
  char text[kFailureTextBytes];   // ends with a zero
};

// What a rank publishes in one lane.
struct RankWords {
  BellWords bell;
  Word issued;    // calls that this rank has made, whether the others can see them yet or not
  Word staged;    // rounds for which this rank's bytes are in its staging slot
  Word reduced;   // rounds of which this rank has reduced its part
  Word pulled;    // rounds of which this rank has read all it wanted
  Word finished;  // collectives in which this rank owes nothing more to anybody
  Word working;   // the number, plus one, of the call of which it is reducing a chunk for all; 0: of none
  FailureWords failure;
  ClaimWords claims[kCallsInFlight];
};

enum class Lane : uint8_t { Data, Control };

// Offsets in a lane. The control lane ends with its calls: what it carries fits into them.
inline constexpr size_t up_to_page(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
inline constexpr size_t kWordsAt = 0;
inline constexpr size_t kCallsAt = kWordsAt + up_to_page(sizeof(RankWords));
inline constexpr size_t kStagingAt = kCallsAt + kCallsInFlight * kCallSlotBytes;
inline constexpr size_t kControlLaneBytes = kStagingAt;
inline constexpr size_t kOutboxesAt = kStagingAt + kStagingSlots * kCrowdedChunkBytes;
inline constexpr size_t data_lane_bytes(int world_size) {
  return kOutboxesAt + up_to_page(static_cast<size_t>(world_size) * sizeof(Outbox));
}

// Offsets in the first extent.
inline constexpr size_t lane_at(Lane lane, int world_size) {
  return Segment::kTableBytes + (lane == Lane::Data ? 0 : data_lane_bytes(world_size));
}
inline constexpr size_t first_extent_bytes(int world_size) {
  return lane_at(Lane::Control, world_size) + kControlLaneBytes;
}

// What begins the bytes of a call of the control lane, so that errors can name it.
struct AgreementHeader {
  char label[56];  // ends with a zero
  uint64_t bytes;  // of this rank, in all
};

}  // namespace lockstep::shm
