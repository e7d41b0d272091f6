#include "worker/comm/host/message.h"

#include <cstring>

#include "common/random/philox.h"
#include "worker/comm/host/wire.h"

namespace trainyard::comm {
namespace {

// Offsets of docs/formats/data-plane.md.
constexpr int kMagicAt = 0;
constexpr int kVersionAt = 4;
constexpr int kOpAt = 6;
constexpr int kDTypeAt = 7;
constexpr int kReduceAt = 8;
constexpr int kReservedAt = 9;
constexpr int kSourceAt = 10;
constexpr int kPartAt = 12;
constexpr int kGenerationAt = 16;
constexpr int kGroupAt = 24;
constexpr int kSequenceAt = 32;
constexpr int kCountAt = 40;
constexpr int kDetailAt = 48;
constexpr int kPayloadAt = 56;

/// A member is 16 bits (factory.cc); the rest of `detail` is a hash of the counts.
constexpr int kRootShift = 48;
constexpr uint64_t kCountsMask = (uint64_t{1} << kRootShift) - 1;

/// What a peer sends is not the user's data: as with one that is gone, a new generation helps.
Error damaged(const std::string& what) { return {ErrorCode::kPeerLost, "message header: " + what}; }

}  // namespace

std::string describe(const Signature& s) {
  std::string text = std::string(name_of(s.op)) + " #" + std::to_string(s.sequence) + " (";
  text += name_of(s.dtype);
  if (s.op == Operation::kAllReduce || s.op == Operation::kReduceScatter ||
      s.op == Operation::kReduce) {
    text += ' ';
    text += name_of(s.reduce);
  }
  text += ", " + std::to_string(s.count) + " elements";
  if (s.op == Operation::kBroadcast || s.op == Operation::kReduce)
    text += ", root " + std::to_string(s.detail);
  if (s.op == Operation::kScatter || s.op == Operation::kGather) {
    text += ", root " + std::to_string(s.detail >> kRootShift) + ", counts hash " +
            std::to_string(s.detail & kCountsMask);
  }
  if (s.op == Operation::kReduceScatter || s.op == Operation::kAllGather) {
    text += ", counts hash " + std::to_string(s.detail);
  }
  return text + ")";
}

WireHeader encode(const MessageHeader& header) {
  WireHeader wire{};
  std::byte* at = wire.data();
  put_le<uint32_t>(at + kMagicAt, kMessageMagic);
  put_le<uint16_t>(at + kVersionAt, kProtocolVersion);
  put_le<uint8_t>(at + kOpAt, static_cast<uint8_t>(header.signature.op));
  put_le<uint8_t>(at + kDTypeAt, static_cast<uint8_t>(header.signature.dtype));
  put_le<uint8_t>(at + kReduceAt, static_cast<uint8_t>(header.signature.reduce));
  put_le<uint16_t>(at + kSourceAt, static_cast<uint16_t>(header.source));
  put_le<uint32_t>(at + kPartAt, header.part);
  put_le<int64_t>(at + kGenerationAt, header.generation);
  put_le<uint64_t>(at + kGroupAt, header.group);
  put_le<uint64_t>(at + kSequenceAt, header.signature.sequence);
  put_le<int64_t>(at + kCountAt, header.signature.count);
  put_le<uint64_t>(at + kDetailAt, header.signature.detail);
  put_le<int64_t>(at + kPayloadAt, header.payload_bytes);
  return wire;
}

Result<MessageHeader> decode_message(std::span<const std::byte, kHeaderBytes> wire) {
  const std::byte* at = wire.data();
  if (const auto magic = get_le<uint32_t>(at + kMagicAt); magic != kMessageMagic) {
    return damaged("magic is " + std::to_string(magic) + ", wanted " +
                   std::to_string(kMessageMagic) + ": the other side speaks another protocol");
  }
  if (const auto version = get_le<uint16_t>(at + kVersionAt); version != kProtocolVersion) {
    return Error{ErrorCode::kConflict, "message header: version is " + std::to_string(version) +
                                           ", wanted " + std::to_string(kProtocolVersion) +
                                           ": run the same build on every rank"};
  }
  const auto op = get_le<uint8_t>(at + kOpAt);
  const auto dtype = get_le<uint8_t>(at + kDTypeAt);
  const auto reduce = get_le<uint8_t>(at + kReduceAt);
  if (op < static_cast<uint8_t>(Operation::kAllReduce) ||
      op > static_cast<uint8_t>(kOperations.back())) {
    return damaged("operation " + std::to_string(op) + " is not known");
  }
  if (dtype > static_cast<uint8_t>(DType::kInt64)) {
    return damaged("dtype " + std::to_string(dtype) + " is not known");
  }
  if (reduce > static_cast<uint8_t>(ReduceOp::kLor)) {
    return damaged("reduce op " + std::to_string(reduce) + " is not known");
  }
  if (get_le<uint8_t>(at + kReservedAt) != 0) return damaged("the reserved byte is not zero");
  MessageHeader header;
  header.signature.op = static_cast<Operation>(op);
  header.signature.dtype = static_cast<DType>(dtype);
  header.signature.reduce = static_cast<ReduceOp>(reduce);
  header.source = get_le<uint16_t>(at + kSourceAt);
  header.part = get_le<uint32_t>(at + kPartAt);
  header.generation = get_le<int64_t>(at + kGenerationAt);
  header.group = get_le<uint64_t>(at + kGroupAt);
  header.signature.sequence = get_le<uint64_t>(at + kSequenceAt);
  header.signature.count = get_le<int64_t>(at + kCountAt);
  header.signature.detail = get_le<uint64_t>(at + kDetailAt);
  header.payload_bytes = get_le<int64_t>(at + kPayloadAt);
  if (header.signature.count < 0 || header.signature.count > kMaxPayloadBytes) {
    return damaged("count " + std::to_string(header.signature.count) + " is outside 0.." +
                   std::to_string(kMaxPayloadBytes));
  }
  if (header.payload_bytes < 0 || header.payload_bytes > kMaxPayloadBytes) {
    return damaged("payload of " + std::to_string(header.payload_bytes) + " bytes is outside 0.." +
                   std::to_string(kMaxPayloadBytes));
  }
  return header;
}

Status check_header(const WireHeader& wanted, const WireHeader& found, int own_rank,
                    int source_rank) {
  if (std::memcmp(wanted.data(), found.data(), wanted.size()) == 0) return {};
  const std::string from = "from rank " + std::to_string(source_rank);
  auto decoded = decode_message(std::span<const std::byte, kHeaderBytes>(found));
  if (!decoded) return std::move(decoded).error().with_context(from);
  const MessageHeader mine = *decode_message(std::span<const std::byte, kHeaderBytes>(wanted));
  if (decoded->generation != mine.generation) {
    return Error{ErrorCode::kConflict,
                 from + ": a message of generation " + std::to_string(decoded->generation) +
                     " is refused, this is generation " + std::to_string(mine.generation)};
  }
  if (decoded->group != mine.group || decoded->source != mine.source) {
    return Error{ErrorCode::kInternal,
                 from + ": a message of group " + std::to_string(decoded->group) + " member " +
                     std::to_string(decoded->source) + ", wanted group " +
                     std::to_string(mine.group) + " member " + std::to_string(mine.source)};
  }
  return Error{ErrorCode::kInternal,
               "signature mismatch: rank " + std::to_string(own_rank) + " runs " +
                   describe(mine.signature) + " and wants message " + std::to_string(mine.part) +
                   " of " + std::to_string(mine.payload_bytes) + " bytes, rank " +
                   std::to_string(source_rank) + " runs " + describe(decoded->signature) +
                   " and sent message " + std::to_string(decoded->part) + " of " +
                   std::to_string(decoded->payload_bytes) +
                   " bytes; all ranks must call the same operations in the same order"};
}

uint64_t root_and_counts(int root, std::span<const int64_t> counts) {
  return static_cast<uint64_t>(root) << kRootShift | (hash_counts(counts) & kCountsMask);
}

uint64_t hash_counts(std::span<const int64_t> counts) {
  uint64_t hash = mix64(counts.size());
  for (const int64_t count : counts)
    hash = mix64(hash ^ static_cast<uint64_t>(count));
  return hash;
}

}  // namespace trainyard::comm
