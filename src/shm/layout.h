// The byte map of one rank's segment: what ranks read and write in each other's memory. docs/shm-layout.md
// draws it.
//
// A segment has two lanes, each with its own words and calls: one for data, one for the control channel. The
// lanes fail independently.
//
// Words that are written independently of each other are on separate cache lines. After writing a word that
// a thread may sleep for, a full fence precedes the check for sleepers. One side publishes the word and then
// checks for sleepers; the other side registers as a sleeper and then checks the word again. At least one of
// the two sees the other (bell.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/segment.h"

namespace lockstep::shm {

// Two cache lines: processors fetch them in pairs.
inline constexpr size_t kWordSpacing = 128;

inline constexpr int kMaxWorld = 256;
// Calls of one lane that may be under way: begun on some rank and not finished on all.
inline constexpr uint64_t kCallsInFlight = 16;
// Staging slots of a rank. The fastest rank may be this many rounds ahead of the slowest.
inline constexpr uint64_t kStagingSlots = 4;
// The size of a staging slot. Small, so that staged bytes are still in the rank's cache when it reduces them.
// Larger with more ranks than CPUs, because then each round costs a context switch.
inline constexpr size_t kChunkBytes = size_t{128} << 10;
inline constexpr size_t kCrowdedChunkBytes = size_t{1} << 20;

struct alignas(kWordSpacing) Word {
  std::atomic<uint64_t> value;
};

// The futex on which threads of a rank sleep; see bell.h.
struct alignas(kWordSpacing) BellWords {
  std::atomic<uint32_t> rung;
  std::atomic<uint32_t> sleepers;
};

// Where the bytes are that a rank gives in a call.
enum class Where : uint8_t { Nowhere, Inline, Registered, Staged };

// A rank's arrival at a call, with everything that the other ranks need to know about it.
struct CallWords {
  std::atomic<uint64_t> number;  // the call's number plus one; written last
  uint64_t count;                // elements; all ranks must agree. What is counted depends on the kind
  uint64_t bytes;                // that this rank gives, in total
  uint64_t largest;              // the largest piece that this rank gives to one rank
  uint64_t offset;               // Where::Registered: of the first byte, in the memory of the giver's process
  int32_t root;
  uint8_t kind;
  uint8_t dtype;  // c10::ScalarType
  uint8_t op;     // ReduceOp
  Where where;
};
static_assert(sizeof(CallWords) == 48);

// A call, followed by its bytes if they fit. The first 16 bytes are on the cache line of the call.
inline constexpr size_t kCallSlotBytes = 8192;
inline constexpr size_t kInlineBytes = kCallSlotBytes - sizeof(CallWords);
struct alignas(64) CallSlot {
  CallWords call;
  alignas(16) std::byte bytes[kInlineBytes];
};
static_assert(sizeof(CallSlot) == kCallSlotBytes);

// The chunks of a call that any rank can reduce. Both words contain the call's number plus one in the upper
// half and a count in the lower half, so they need no reset between calls. Only rank 0's are used.
struct ClaimWords {
  Word taken;
  Word done;
};

// A message to one rank. The sender writes an envelope and raises `posted`; the receiver copies the envelope
// and raises `taken`.
struct Envelope {
  int32_t tag;
  uint8_t dtype;
  bool registered;  // the payload is in the memory of the sender's process; otherwise in its segment
  uint64_t bytes;
  uint64_t payload;   // its offset
  uint64_t delivery;  // offset of a DeliveryWords in the sender's segment
};
inline constexpr uint64_t kEnvelopes = 16;
struct Outbox {
  Word posted;
  Word taken;
  Envelope envelopes[kEnvelopes];
};

// The state of a message, in the sender's segment.
enum class Delivery : uint32_t { Posted, Received };
struct DeliveryWords {
  std::atomic<Delivery> state;
};

// The first error of a rank, for the other ranks to read.
inline constexpr size_t kFailureTextBytes = 2048;
struct FailureWords {
  std::atomic<uint32_t> present;  // written last
  char kind[28];                  // Error::kind()
  char text[kFailureTextBytes];   // zero-terminated
};

// What a rank publishes in one lane.
struct RankWords {
  BellWords bell;
  Word issued;    // calls that this rank has made, including those that the others cannot see yet
  Word staged;    // rounds for which this rank's bytes are in its staging slot
  Word reduced;   // rounds of which this rank has reduced its part
  Word pulled;    // rounds of which this rank has read all that it takes
  Word finished;  // calls of which this rank has done its part
  Word working;   // the number, plus one, of the call of which it is reducing a chunk for all ranks; 0: none
  FailureWords failure;
  ClaimWords claims[kCallsInFlight];
};

enum class Lane : uint8_t { Data, Control };

// Offsets in a lane. The control lane ends after its call slots, because its data fits into them.
inline constexpr size_t round_up_to_page(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
inline constexpr size_t kWordsAt = 0;
inline constexpr size_t kCallsAt = kWordsAt + round_up_to_page(sizeof(RankWords));
inline constexpr size_t kStagingAt = kCallsAt + kCallsInFlight * kCallSlotBytes;
inline constexpr size_t kControlLaneBytes = kStagingAt;
inline constexpr size_t kOutboxesAt = kStagingAt + kStagingSlots * kCrowdedChunkBytes;
inline constexpr size_t data_lane_bytes(int world_size) {
  return kOutboxesAt + round_up_to_page(static_cast<size_t>(world_size) * sizeof(Outbox));
}

// Offsets in the first extent.
inline constexpr size_t lane_at(Lane lane, int world_size) {
  return Segment::kTableBytes + (lane == Lane::Data ? 0 : data_lane_bytes(world_size));
}
inline constexpr size_t first_extent_bytes(int world_size) {
  return lane_at(Lane::Control, world_size) + kControlLaneBytes;
}

// The start of the bytes of a call in the control lane. Errors print the label.
struct AgreementHeader {
  char label[56];  // zero-terminated
  uint64_t bytes;  // of this rank, in total
};

}  // namespace lockstep::shm
