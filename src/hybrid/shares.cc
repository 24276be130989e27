#include "hybrid/shares.h"

#include <algorithm>

namespace lockstep::hybrid {

namespace {

constexpr int64_t kCacheLine = 64;
// At 1 Gbit/s, a chunk takes 8 ms; at 25 Gbit/s, 0.3 ms, in which the ranks reduce several chunks.
constexpr int64_t kChunkBytes = int64_t{1} << 20;
// The first chunk has a quarter of that, the second one half.
constexpr int64_t kFirstDivisor = 4;
// A message of this size costs about as much CPU time for its bytes as for itself.
constexpr int64_t kMessageBytes = int64_t{64} << 10;
// Up to this size, one message costs less than the time that its bytes take.
constexpr int64_t kSmallBytes = int64_t{64} << 10;
// A tensor of up to kSmallTensor bytes is divided into chunks of kSmallChunk: the link starts after the first
// one is reduced, and idles only while the last one is added.
constexpr int64_t kSmallTensor = int64_t{256} << 10;
constexpr int64_t kSmallChunk = int64_t{16} << 10;
// Of a bucket of gradients. The next bucket is reduced while the last one is on its way.
constexpr int64_t kChunksInABucket = 4;

int64_t elements(int64_t bytes, size_t element_bytes) {
  return std::max<int64_t>(1, bytes / static_cast<int64_t>(element_bytes));
}

// The smallest multiple of a cache line that `parts` times covers `count`.
int64_t even_part(int64_t count, int parts, size_t element_bytes) {
  const auto line = elements(kCacheLine, element_bytes);
  const auto part = (count + parts - 1) / parts;
  return (part + line - 1) / line * line;
}

Range cut(const Range& range, int64_t from, int64_t to) {
  from = std::min(from, range.count);
  to = std::min(to, range.count);
  return {range.from + from, to - from};
}

}  // namespace

namespace {

int64_t chunk_bytes(const Topology& topology) {
  return std::max(kChunkBytes, kMessageBytes * topology.messages_in_a_chunk());
}

}  // namespace

std::vector<Range> chunks_of(int64_t count, const Topology& topology, size_t element_bytes) {
  const bool small = count * static_cast<int64_t>(element_bytes) <= kSmallTensor;
  const auto usual = elements(small ? kSmallChunk : chunk_bytes(topology), element_bytes);
  std::vector<Range> chunks;
  int64_t length = small ? usual : std::max<int64_t>(1, usual / kFirstDivisor);
  for (int64_t from = 0; from < count || chunks.empty();) {
    chunks.push_back({from, std::min(length, count - from)});
    from += length;
    length = std::min(2 * length, usual);
  }
  return chunks;
}

size_t bucket_bytes_for(const Topology& topology) {
  return static_cast<size_t>(kChunksInABucket * chunk_bytes(topology));
}

std::vector<Range> shares_of(const Range& chunk, int ranks, size_t element_bytes) {
  const bool small = chunk.count * static_cast<int64_t>(element_bytes) <= kSmallBytes;
  const auto share = small ? chunk.count : even_part(chunk.count, ranks, element_bytes);
  std::vector<Range> shares;
  for (int index = 0; index < ranks; ++index)
    shares.push_back(cut(chunk, index * share, (index + 1) * share));
  return shares;
}

std::vector<Strip> strips_of(const Range& chunk, const Topology& topology, size_t element_bytes) {
  std::vector<std::vector<Range>> shares;
  for (const auto& ranks : topology.ranks_of) {
    shares.push_back(shares_of(chunk, static_cast<int>(ranks.size()), element_bytes));
  }
  const auto mine = shares[topology.machine][topology.local];
  std::vector<int64_t> bounds{mine.from, mine.end()};
  for (const auto& machine : shares) {
    for (const auto& share : machine) {
      if (share.from > mine.from && share.from < mine.end()) bounds.push_back(share.from);
    }
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());

  std::vector<Strip> strips;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    Strip strip{.range = {bounds[i], bounds[i + 1] - bounds[i]}, .owners = {}};
    for (int m = 0; m < topology.machines(); ++m) {
      const auto owner = std::find_if(shares[m].begin(), shares[m].end(),
                                      [&](const Range& share) { return share.end() > strip.range.from; });
      strip.owners.push_back(topology.ranks_of[m][owner - shares[m].begin()]);
    }
    strips.push_back(std::move(strip));
  }
  return strips;
}

Range part_of(const Range& range, int parts, int index, size_t element_bytes) {
  const auto part = even_part(range.count, parts, element_bytes);
  return cut(range, index * part, (index + 1) * part);
}

}  // namespace lockstep::hybrid
