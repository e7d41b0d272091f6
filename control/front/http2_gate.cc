#include "control/front/http2_gate.h"

#include <algorithm>

namespace trainyard::control {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";  // section 3.4
// Section 6.
constexpr uint8_t kData = 0x0;
constexpr uint8_t kHeaders = 0x1;
constexpr uint8_t kResetStream = 0x3;
constexpr uint8_t kSettings = 0x4;
constexpr uint8_t kPushPromise = 0x5;
constexpr uint8_t kPing = 0x6;
constexpr uint8_t kContinuation = 0x9;
constexpr uint8_t kAcknowledges = 0x1;
constexpr uint8_t kEndHeaders = 0x4;

}  // namespace

std::string_view Http2Gate::pass(std::string_view bytes) {
  const std::string_view preface_left = kPreface.substr(preface_seen_);
  const std::string_view begin = bytes.substr(0, preface_left.size());
  if (!preface_left.starts_with(begin)) return "it does not speak HTTP/2";
  preface_seen_ += begin.size();
  bytes.remove_prefix(begin.size());
  while (!bytes.empty()) {
    if (payload_left_ > 0) {
      const auto passed = std::min(payload_left_, static_cast<int64_t>(bytes.size()));
      payload_left_ -= passed;
      bytes.remove_prefix(static_cast<size_t>(passed));
      continue;
    }
    head_.at(head_size_++) = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    if (head_size_ < head_.size()) continue;
    head_size_ = 0;
    const std::string_view fault = begin_frame();
    if (!fault.empty()) return fault;
  }
  return {};
}

std::string_view Http2Gate::begin_frame() {
  payload_left_ = head_[0] << 16 | head_[1] << 8 | head_[2];
  const uint8_t type = head_[3];
  if (in_header_ != (type == kContinuation)) return "its header does not end";
  switch (type) {
    case kHeaders:
      if (has_request_) return "it sends a second request";
      has_request_ = true;
      [[fallthrough]];
    case kContinuation:
      return begin_header(payload_left_, head_[4]);
    case kResetStream:
      if (has_reset_) return "it takes back requests again and again";
      has_reset_ = true;
      return {};
    case kPushPromise:
      return "it promises what servers promise";
    case kData:
      if (payload_left_ > 0) {
        empty_frames_ = 0;
        questions_ = 0;
      } else if (++empty_frames_ > kMaxEmptyFrames) {
        return "it sends frames without content";
      }
      return {};
    case kSettings:
    case kPing:
      if ((head_[4] & kAcknowledges) == 0 && ++questions_ > kMaxQuestions)
        return "it asks and says nothing";
      return {};
    default:
      return {};
  }
}

std::string_view Http2Gate::begin_header(int64_t length, uint8_t flags) {
  header_bytes_ += length;
  ++header_frames_;
  if (header_bytes_ > kMaxHeaderBytes || header_frames_ > kMaxHeaderFrames) {
    return "its header is longer than 16 KiB";
  }
  in_header_ = (flags & kEndHeaders) == 0;
  return {};
}

}  // namespace trainyard::control
