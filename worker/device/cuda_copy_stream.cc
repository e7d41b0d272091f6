#include "worker/device/cuda_copy_stream.h"

#include <chrono>
#include <utility>

#include "common/base/seconds_text.h"
#include "kernels/cuda/poll.h"

namespace trainyard::engine {
namespace {

/// Of a copy of a few MiB: about a tenth of what it takes.
constexpr std::chrono::microseconds kPause{10};

/// The error of a call, which nobody after it is to be blamed for.
Status checked(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  return cuda_error(what, error);
}

class Event final : public CopyStream::Moment {
 public:
  ~Event() override {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  Status record(cudaStream_t stream) {
    TRAINYARD_TRY(
        checked("making an event", cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)));
    return checked("recording an event", cudaEventRecord(event_, stream));
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaCopyStream final : public CopyStream {
 public:
  CudaCopyStream(CudaStream& device, int index)
      : device_(device), index_(index), stuck_(device.stuck_streams()) {}
  ~CudaCopyStream() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  CudaCopyStream(const CudaCopyStream&) = delete;
  CudaCopyStream& operator=(const CudaCopyStream&) = delete;

  Status open() {
    return checked("making a stream of copies",
                   cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  Result<std::unique_ptr<Moment>> now() override {
    TRAINYARD_TRY(device_.status());
    auto event = std::make_unique<Event>();
    TRAINYARD_TRY(event->record(device_.get()));
    return event;
  }
  Status after(const Moment& moment) override {
    TRAINYARD_TRY(checked("choosing the GPU", cudaSetDevice(index_)));  // of this thread
    const auto& event = static_cast<const Event&>(moment);
    return checked("waiting for an event", cudaStreamWaitEvent(stream_, event.get(), 0));
  }
  Status copy(std::span<const CopyRange> ranges, const std::stop_token& stop) override {
    for (const CopyRange& range : ranges) {
      TRAINYARD_TRY(
          checked("copy for a collective",
                  cudaMemcpyAsync(range.to, range.from, range.bytes, cudaMemcpyDefault, stream_)));
    }
    return wait(stop);
  }

 private:
  Status wait(const std::stop_token& stop) {
    // What comes before may be most of a step.
    const cudaError_t error =
        kernels::cuda::poll([this] { return cudaStreamQuery(stream_); },
                            {.deadline = device_.deadline(), .pause = kPause, .stop = stop});
    if (error != cudaErrorNotReady) {
      if (error == cudaSuccess) stuck_.set(false);
      return checked("a kernel or copy before a collective", error);
    }
    if (stop.stop_requested()) {
      return Error{ErrorCode::kAborted, "CUDA: a copy for a collective was abandoned"};
    }
    stuck_.set(true);
    return Error{ErrorCode::kDeadline, "CUDA: the GPU has not reached a collective within " +
                                           seconds_text(device_.deadline()) +
                                           "; a kernel hangs, or the GPU is shared with others"};
  }

  CudaStream& device_;
  int index_;
  StuckStream stuck_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<CopyStream>> make_cuda_copy_stream(CudaStream& stream, int index) {
  auto made = std::make_unique<CudaCopyStream>(stream, index);
  TRAINYARD_TRY(made->open());
  return made;
}

}  // namespace trainyard::engine
