#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trainyard::testing_support {

/// Where the answers of an HTTP/1.1 server end, in a stream of bytes that is passed on as it is: by
/// Content-Length or in chunks (RFC 9112, 6). An answer with neither has no body.
class AnswerFraming {
 public:
  /// Takes what belongs to the answer; how many bytes that is.
  size_t take(std::string_view bytes);

  bool complete() const { return part_ == Part::kComplete; }
  /// Of its first line; 0 before that has come.
  int status() const { return status_; }

 private:
  enum class Part { kHead, kBody, kChunkSize, kChunk, kChunkEnd, kTrailer, kComplete };

  void end_line(const std::string& line);
  void read_head_line(const std::string& line);

  Part part_ = Part::kHead;
  std::string line_;
  int status_ = 0;
  bool chunked_ = false;
  size_t left_ = 0;  ///< of the body or the chunk
};

}  // namespace trainyard::testing_support
