#include "worker/device/cuda_side_stream.h"

#include <utility>

namespace trainyard::engine {
namespace {

/// The error of a call, which nobody after it is to be blamed for.
Status accepted(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  return cuda_error(what, error);
}

class CudaMoment final : public SideStream::Moment {
 public:
  CudaMoment() = default;
  ~CudaMoment() override {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  CudaMoment(const CudaMoment&) = delete;
  CudaMoment& operator=(const CudaMoment&) = delete;

  Status record(cudaStream_t stream) {
    TRAINYARD_TRY(
        accepted("making an event", cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)));
    return accepted("recording an event", cudaEventRecord(event_, stream));
  }
  cudaEvent_t get() const { return event_; }
  Result<bool> passed() const override {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaSuccess) return true;
    (void)cudaGetLastError();  // a poll's answer stays behind for whoever asks next
    if (error == cudaErrorNotReady) return false;
    return cuda_error("a kernel or copy before a collective", error);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaSideStream final : public SideStream {
 public:
  CudaSideStream(CudaStream& device, int index) : device_(device), index_(index) {}
  ~CudaSideStream() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  CudaSideStream(const CudaSideStream&) = delete;
  CudaSideStream& operator=(const CudaSideStream&) = delete;

  Status open() {
    int lowest = 0;
    int highest = 0;
    TRAINYARD_TRY(
        accepted("priorities of streams", cudaDeviceGetStreamPriorityRange(&lowest, &highest)));
    return accepted("making a stream of collectives",
                    cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
  }
  void* handle() const override { return stream_; }
  Result<MomentPtr> device_now() override {
    TRAINYARD_TRY(device_.status());
    return recorded(device_.get());
  }
  Status device_after(const Moment& moment) override { return wait(device_.get(), moment); }
  Status enter() override { return accepted("choosing the GPU", cudaSetDevice(index_)); }
  Status after(const Moment& moment) override { return wait(stream_, moment); }
  Result<MomentPtr> now() override { return recorded(stream_); }

 private:
  static Result<MomentPtr> recorded(cudaStream_t stream) {
    auto moment = std::make_shared<CudaMoment>();
    TRAINYARD_TRY(moment->record(stream));
    return MomentPtr(std::move(moment));
  }
  static Status wait(cudaStream_t stream, const Moment& moment) {
    const auto& event = static_cast<const CudaMoment&>(moment);
    return accepted("waiting for an event", cudaStreamWaitEvent(stream, event.get(), 0));
  }

  CudaStream& device_;
  int index_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<SideStream>> make_cuda_side_stream(CudaStream& stream, int index) {
  auto made = std::make_unique<CudaSideStream>(stream, index);
  TRAINYARD_TRY(made->open());
  return made;
}

}  // namespace trainyard::engine
