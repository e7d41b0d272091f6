#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/simt/runtime.h"
#include "worker/device/cuda_plan.h"
#include "worker/device/cuda_repeats.h"
#include "worker/device/cuda_spans.h"

namespace trainyard::engine {

using kernels::cuda::cuda_error;

/// How many streams of a device are stuck.
using StuckStreams = std::atomic<int>;

/// Whether one stream was not done within a deadline, as far as that is known: another one's end
/// says nothing of it. One thread at a time.
class StuckStream {
 public:
  explicit StuckStream(StuckStreams& all) : all_(all) {}
  void set(bool is_stuck) {
    if (is_stuck != is_stuck_) all_ += is_stuck ? 1 : -1;
    is_stuck_ = is_stuck;
  }

 private:
  StuckStreams& all_;
  bool is_stuck_ = false;
};

/// The one stream of a CUDA device, how what was enqueued on it went, and small copies from and to
/// host memory of any kind. One thread at a time.
class CudaStream {
 public:
  /// `deadline`: of waits for the GPU that nobody gives another.
  static Result<std::unique_ptr<CudaStream>> create(std::chrono::milliseconds deadline);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }
  /// Notes how a call went; false where it failed. The first failure stays.
  bool note(const char* what, cudaError_t error);
  void note(Error error);
  /// What has failed so far, of what is known without waiting.
  const Status& status() const { return status_; }
  /// Polls until all that was enqueued is done. Errors: kDeadline; what failed.
  Status wait(std::chrono::milliseconds deadline);
  std::chrono::milliseconds deadline() const { return deadline_; }
  /// Of this stream and of those beside it, which each count as one.
  StuckStreams& stuck_streams() { return stuck_streams_; }
  /// See Device::is_stuck(). Any thread.
  bool is_stuck() const { return stuck_streams_ > 0; }

  /// See Device::begin_part().
  void begin_part(int part, uint64_t key);
  void end_part(bool is_whole);
  /// Whether what is called for is enqueued. False within a part that is launched as a graph at
  /// its end, for which uploads alone are made.
  bool enqueues() const { return repeats_ == nullptr || repeats_->enqueues(); }
  std::string_view why_parts_are_plain() const { return repeats_->why_plain(); }

  /// See Device::trace_to().
  void trace_to(trace::SpanSink* sink) { spans_->report_to(sink); }
  void begin_span(const trace::Span& span);
  void end_span();

  /// Enqueues a copy of host memory, which is read at the call.
  void upload(void* to, const void* from, size_t bytes);
  /// Enqueues a copy to host memory, which is written when wait() returns. Not within a part: a
  /// graph would write to where the host no longer looks.
  void download(void* to, const void* from, size_t bytes);

 private:
  static constexpr size_t kHalfBytes = kPinnedBytes / 4;
  /// Pinned memory of uploads; written over once the copies out of it are done.
  struct Half {
    std::byte* memory = nullptr;
    size_t used = 0;
    cudaEvent_t copied = nullptr;
  };
  struct Download {
    void* to;
    const std::byte* from;
    size_t bytes;
  };

  explicit CudaStream(std::chrono::milliseconds deadline) : deadline_(deadline) {}
  std::byte* room(size_t bytes);
  template <typename Query>
  Status poll(const Query& query, std::chrono::milliseconds deadline);

  cudaStream_t stream_ = nullptr;
  const std::chrono::milliseconds deadline_;
  StuckStreams stuck_streams_ = 0;
  StuckStream stuck_{stuck_streams_};
  Status status_;
  std::array<Half, 2> halves_;
  size_t half_ = 0;
  std::byte* downloads_memory_ = nullptr;  ///< pinned
  size_t downloads_used_ = 0;
  std::vector<Download> downloads_;
  std::byte* repeated_memory_ = nullptr;  ///< pinned, of uploads of what is repeated
  std::unique_ptr<CudaRepeats> repeats_;
  std::unique_ptr<CudaSpans> spans_;
};

}  // namespace trainyard::engine
