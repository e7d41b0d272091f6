#include "worker/comm/host/control_frame.h"

#include <algorithm>
#include <cstring>

#include "worker/comm/host/message.h"
#include "worker/comm/host/wire.h"

namespace trainyard::comm {
namespace {

constexpr size_t kListMax = 256;
/// No rank: worlds are smaller (factory.cc).
constexpr int kNobody = 0xFFFF;
constexpr size_t kTextBytesMax = 2048;

/// As of a message (message.cc): who says what cannot be understood is lost to its peers.
Error damaged(const std::string& what) { return {ErrorCode::kPeerLost, "control frame: " + what}; }

void append_list(std::vector<std::byte>& out, const std::vector<int>& list) {
  const size_t count = std::min(list.size(), kListMax);
  const size_t at = out.size();
  out.resize(at + 4 * (count + 1));
  put_le<uint32_t>(out.data() + at, static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) {
    put_le<uint32_t>(out.data() + at + 4 * (i + 1), static_cast<uint32_t>(list[i]));
  }
}

void append_text(std::vector<std::byte>& out, std::string_view text) {
  const size_t bytes = std::min(text.size(), kTextBytesMax);
  const size_t at = out.size();
  out.resize(at + bytes);
  std::memcpy(out.data() + at, text.data(), bytes);
}

/// Takes a list off the front of `payload`.
Result<std::vector<int>> take_list(std::span<const std::byte>& payload) {
  if (payload.size() < 4) return damaged("a list without its length");
  const auto count = get_le<uint32_t>(payload.data());
  if (count > kListMax || payload.size() < 4 * (size_t{count} + 1)) {
    return damaged("a list of " + std::to_string(count) + " in " + std::to_string(payload.size()) +
                   " bytes");
  }
  std::vector<int> list;
  for (size_t i = 0; i < count; ++i) {
    const auto value = get_le<uint32_t>(payload.data() + 4 * (i + 1));
    if (value > 0xFFFF) return damaged("rank " + std::to_string(value) + " in a list");
    list.push_back(static_cast<int>(value));
  }
  payload = payload.subspan(4 * (size_t{count} + 1));
  return list;
}

std::string take_text(std::span<const std::byte> payload) {
  const size_t bytes = std::min(payload.size(), kTextBytesMax);
  return {reinterpret_cast<const char*>(payload.data()), bytes};
}

}  // namespace

std::vector<std::byte> encode(const ControlFrame& frame) {
  std::vector<std::byte> out(kControlHeaderBytes);
  switch (frame.kind) {
    case ControlKind::kAbort:
      append_list(out, {frame.failure.origin < 0 ? kNobody : frame.failure.origin});
      append_list(out, frame.failure.lost);
      append_text(out, frame.failure.error.message);
      break;
    case ControlKind::kWaiting:
      append_list(out, frame.waiting.ranks);
      break;
    case ControlKind::kSharedMemory:
      append_text(out, frame.address);
      break;
    case ControlKind::kBye:
    case ControlKind::kMapped:
      break;
  }
  put_le<uint32_t>(out.data(), kControlMagic);
  put_le<uint16_t>(out.data() + 4, kProtocolVersion);
  put_le<uint8_t>(out.data() + 6, static_cast<uint8_t>(frame.kind));
  put_le<uint8_t>(out.data() + 7, static_cast<uint8_t>(frame.failure.error.code));
  put_le<uint32_t>(out.data() + 8,
                   static_cast<uint32_t>(out.size() - static_cast<size_t>(kControlHeaderBytes)));
  return out;
}

Result<int64_t> control_payload_bytes(std::span<const std::byte, kControlHeaderBytes> header) {
  const std::byte* at = header.data();
  if (const auto magic = get_le<uint32_t>(at); magic != kControlMagic) {
    return damaged("magic is " + std::to_string(magic) + ", wanted " +
                   std::to_string(kControlMagic));
  }
  if (const auto version = get_le<uint16_t>(at + 4); version != kProtocolVersion) {
    return Error{ErrorCode::kConflict, "control frame: version is " + std::to_string(version) +
                                           ", wanted " + std::to_string(kProtocolVersion) +
                                           ": run the same build on every rank"};
  }
  const auto kind = get_le<uint8_t>(at + 6);
  if (kind < static_cast<uint8_t>(ControlKind::kAbort) ||
      kind > static_cast<uint8_t>(ControlKind::kMapped)) {
    return damaged("kind " + std::to_string(kind) + " is not known");
  }
  const auto bytes = get_le<uint32_t>(at + 8);
  if (bytes > kControlPayloadBytesMax) {
    return damaged("a payload of " + std::to_string(bytes) + " bytes, at most " +
                   std::to_string(kControlPayloadBytesMax) + " are allowed");
  }
  return static_cast<int64_t>(bytes);
}

Result<ControlFrame> decode_control(std::span<const std::byte> frame) {
  if (frame.size() < static_cast<size_t>(kControlHeaderBytes)) return damaged("no whole header");
  TRAINYARD_ASSIGN(const int64_t bytes,
                   control_payload_bytes(frame.first<static_cast<size_t>(kControlHeaderBytes)>()));
  std::span<const std::byte> payload = frame.subspan(static_cast<size_t>(kControlHeaderBytes));
  if (static_cast<int64_t>(payload.size()) != bytes) {
    return damaged("length says " + std::to_string(bytes) + " bytes, found " +
                   std::to_string(payload.size()));
  }
  ControlFrame decoded;
  decoded.kind = static_cast<ControlKind>(get_le<uint8_t>(frame.data() + 6));
  const auto code = get_le<uint8_t>(frame.data() + 7);
  if (code > static_cast<uint8_t>(ErrorCode::kConflict)) {
    return damaged("error code " + std::to_string(code) + " is not known");
  }
  switch (decoded.kind) {
    case ControlKind::kAbort: {
      TRAINYARD_ASSIGN(const std::vector<int> origin, take_list(payload));
      if (origin.size() != 1) return damaged("an abort without its origin");
      decoded.failure.origin = origin[0] == kNobody ? -1 : origin[0];
      TRAINYARD_ASSIGN(decoded.failure.lost, take_list(payload));
      decoded.failure.error = {static_cast<ErrorCode>(code), take_text(payload)};
      break;
    }
    case ControlKind::kWaiting: {
      TRAINYARD_ASSIGN(decoded.waiting.ranks, take_list(payload));
      break;
    }
    case ControlKind::kSharedMemory:
      decoded.address = take_text(payload);
      break;
    case ControlKind::kBye:
    case ControlKind::kMapped:
      break;
  }
  return decoded;
}

}  // namespace trainyard::comm
