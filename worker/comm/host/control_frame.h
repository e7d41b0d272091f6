#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/comm/host/group.h"

/// What travels on a control connection. docs/formats/data-plane.md is the definition.
namespace trainyard::comm {

inline constexpr uint32_t kControlMagic = 0x43445954;  // "TYDC" read as bytes
inline constexpr int64_t kControlHeaderBytes = 16;
inline constexpr int64_t kControlPayloadBytesMax = 4096;

enum class ControlKind : uint8_t {
  kAbort = 1,         ///< the sender's group failed: code, lost ranks, text
  kBye = 2,           ///< the sender leaves in order
  kWaiting = 3,       ///< whom the sender waits for; none: it goes on
  kSharedMemory = 4,  ///< set-up of shm: where the memory is handed out
  kMapped = 5,        ///< set-up of shm: the sender has it
};

struct ControlFrame {
  ControlKind kind = ControlKind::kBye;
  Failure failure;      ///< kAbort
  WaitReport waiting;   ///< kWaiting
  std::string address;  ///< kSharedMemory
};

/// Texts and lists beyond the payload limit are cut.
std::vector<std::byte> encode(const ControlFrame& frame);

/// Payload bytes after this header. Errors: kPeerLost (magic, kind, length), kConflict (version).
Result<int64_t> control_payload_bytes(std::span<const std::byte, kControlHeaderBytes> header);

/// A whole frame, header included. Errors: kPeerLost or kConflict naming the field.
Result<ControlFrame> decode_control(std::span<const std::byte> frame);

}  // namespace trainyard::comm
