#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace trainyard::comm {

/// Counts of collectives, kept so that an operation may hold on to them without a copy of its own:
/// training calls with the same few again and again. Not thread-safe; what it returns is.
class KnownCounts {
 public:
  using Counts = std::shared_ptr<const std::vector<int64_t>>;

  /// The counts, whose hash is `hash`. Takes memory only where it sees them for the first time.
  Counts of(std::span<const int64_t> counts, uint64_t hash);

  /// More different counts than any step has: those that come after are copied each time.
  static constexpr size_t kMostKept = 4096;

 private:
  std::unordered_map<uint64_t, Counts> by_hash_;
};

}  // namespace trainyard::comm
