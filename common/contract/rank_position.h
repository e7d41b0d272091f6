#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

/// Where a rank stands in its step, in its progress page: what tells, when nothing moves any more,
/// who holds the others up.
namespace trainyard::contract {

/// One instruction of a step in the engine's own words: a kind, and the micro-batch and the layer
/// or unit it is about; -1 where it has none.
struct InstructionName {
  std::string_view kind;  ///< at most kMaxKindBytes are kept
  int32_t micro_batch = -1;
  int32_t place = -1;
  static constexpr size_t kMaxKindBytes = 16;
};

/// Written by the rank alone with plain stores, before each instruction and around waits. The
/// stores are not one: a reading may mix two instructions of a rank that moves, never of one that
/// stands.
struct RankPosition {
  /// Logical time of the instruction, or of what follows a program, since the process started
  /// (docs/concepts/stalls.md). Of two ranks of which one waits for the other, the one that waits
  /// has the higher one, so the lowest is the rank that has not arrived.
  std::atomic<int64_t> arrivals;
  std::array<std::atomic<uint64_t>, InstructionName::kMaxKindBytes / sizeof(uint64_t)> kind;
  std::atomic<int32_t> micro_batch;
  std::atomic<int32_t> place;
  /// This rank's own part of a step (forward and backward, what waits for other ranks left out),
  /// exponentially weighted mean; 0 before the first step.
  std::atomic<double> work_seconds;
};

/// For the one writer.
void store(const InstructionName& name, RankPosition& position);

/// "GATHER u2", "B m3 l0"; empty before the first instruction. What a foreign process wrote comes
/// out printable.
std::string instruction_text(const RankPosition& position);

}  // namespace trainyard::contract
