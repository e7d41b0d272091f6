#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "worker/comm/operation.h"

/// The header before every payload between two ranks. docs/formats/data-plane.md is the definition.
namespace trainyard::comm {

inline constexpr uint32_t kMessageMagic = 0x4D445954;  // "TYDM" read as bytes
inline constexpr uint16_t kProtocolVersion = 2;
inline constexpr int64_t kHeaderBytes = 64;
/// More than any tensor of one rank; a header beyond it is damaged.
inline constexpr int64_t kMaxPayloadBytes = int64_t{1} << 44;

/// What all ranks of a group must agree on for one operation.
struct Signature {
  Operation op = Operation::kBarrier;
  DType dtype = DType::kUint8;
  ReduceOp reduce = ReduceOp::kSum;
  uint64_t sequence =
      0;              ///< of the group's collectives; point-to-point counts each pair and direction
  int64_t count = 0;  ///< elements of the whole buffer
  uint64_t detail = 0;  ///< a hash of the counts, the root, or both
};

/// "all_reduce #12 (I64 sum, 1000 elements, detail 0)".
std::string describe(const Signature& signature);

/// One message.
struct MessageHeader {
  Signature signature;
  int64_t generation = 0;
  uint64_t group = 0;
  int source = 0;     ///< rank inside the group
  uint32_t part = 0;  ///< which message of the operation between these two
  int64_t payload_bytes = 0;
};

using WireHeader = std::array<std::byte, kHeaderBytes>;

WireHeader encode(const MessageHeader& header);

/// Errors: kPeerLost naming the field: magic, unknown operation or types, sizes beyond limits,
/// reserved bytes that are not zero; kConflict for another version.
Result<MessageHeader> decode_message(std::span<const std::byte, kHeaderBytes> wire);

/// Why `found` is not the message `wanted` that was due from global rank `source_rank`. Errors:
/// kPeerLost (damaged), kConflict (another version or generation), kInternal (another group, source
/// or signature; both sides named). Success only when they are equal.
Status check_header(const WireHeader& wanted, const WireHeader& found, int own_rank,
                    int source_rank);

/// A hash of the counts of a collective, for Signature::detail.
uint64_t hash_counts(std::span<const int64_t> counts);
/// The same beside a root.
uint64_t root_and_counts(int root, std::span<const int64_t> counts);

}  // namespace trainyard::comm
