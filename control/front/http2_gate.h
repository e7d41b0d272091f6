#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trainyard::control {

/// Reads along what a client says in HTTP/2 (RFC 9113) and finds what no agent does. An agent sends
/// one request per connection. A library that frees what a reset request took only later, or
/// collects a header until it ends, is thereby safe from a client that sends many requests or an
/// endless header. Only the heads of frames are looked at; what is in them is the library's affair.
/// Pure.
class Http2Gate {
 public:
  /// What the header of a request may take, as sent: gRPC's own limit is 8 KiB unpacked.
  static constexpr int64_t kMaxHeaderBytes = 16 << 10;
  static constexpr int kMaxHeaderFrames = 8;
  /// Frames without content are dear for their size: so many, until content comes.
  static constexpr int kMaxEmptyFrames = 1024;
  /// Pings and settings, which the library has to answer, until content comes. An agent that has
  /// nothing to say asks every 10 s.
  static constexpr int kMaxQuestions = 4096;

  /// The next bytes of the connection, cut anywhere. Empty: all is well; else what is wrong, and
  /// the connection is to be closed.
  std::string_view pass(std::string_view bytes);

 private:
  std::string_view begin_frame();
  std::string_view begin_header(int64_t length, uint8_t flags);

  size_t preface_seen_ = 0;
  std::array<uint8_t, 9> head_{};  ///< of a frame (section 4.1)
  size_t head_size_ = 0;
  int64_t payload_left_ = 0;
  bool has_request_ = false;
  bool in_header_ = false;  ///< continuations are to follow
  int64_t header_bytes_ = 0;
  int header_frames_ = 0;
  int empty_frames_ = 0;
  int questions_ = 0;
  bool has_reset_ = false;
};

}  // namespace trainyard::control
