#pragma once

#include <array>
#include <vector>

#include "worker/trace/span.h"

namespace trainyard::trace {

/// Spans of a rank's newest steps, by track, each track ascending by end.
using Spans = std::array<std::vector<Span>, kTracks>;

/// Keeps a rank's newest spans in one ring a track. A ring takes its memory with its first span;
/// after that add() writes one entry.
class Recorder final : public SpanSink {
 public:
  /// Entries of one ring, each track's.
  static constexpr int64_t kSpansMax = int64_t{1} << 16;
  /// Of a full ring.
  static constexpr int64_t kRingBytes = kSpansMax * static_cast<int64_t>(sizeof(Span));

  /// Keeps up to `steps` steps; fewer where they do not fit into rings of `spans` entries.
  explicit Recorder(int64_t steps, int64_t spans = kSpansMax);

  void add(Track track, const Span& span) override;

  /// The newest whole steps, at most as many as asked for, and all that began since the first of
  /// them. Empty before the first whole step. No track may be written meanwhile.
  Spans newest() const;

 private:
  struct Ring {
    std::vector<Span> entries;
    uint64_t added = 0;
  };
  std::vector<Span> in_order(const Ring& ring) const;

  const int64_t steps_;
  const size_t spans_;  ///< of a full ring
  std::array<Ring, kTracks> rings_;
};

}  // namespace trainyard::trace
