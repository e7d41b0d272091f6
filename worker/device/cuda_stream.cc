#include "worker/device/cuda_stream.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/base/seconds_text.h"
#include "kernels/cuda/poll.h"

namespace trainyard::engine {
namespace {

/// Polls without a pause: a step's end is often near.
constexpr int kSpins = 2000;
constexpr std::chrono::microseconds kPause{50};

}  // namespace

Result<std::unique_ptr<CudaStream>> CudaStream::create(std::chrono::milliseconds deadline) {
  std::unique_ptr<CudaStream> stream(new CudaStream(deadline));
  cudaError_t error = cudaStreamCreateWithFlags(&stream->stream_, cudaStreamNonBlocking);
  for (Half& half : stream->halves_) {
    void* memory = nullptr;
    if (error == cudaSuccess) error = cudaMallocHost(&memory, kHalfBytes);
    half.memory = static_cast<std::byte*>(memory);
    if (error == cudaSuccess) {
      error = cudaEventCreateWithFlags(&half.copied, cudaEventDisableTiming);
    }
  }
  for (std::byte** const to : {&stream->downloads_memory_, &stream->repeated_memory_}) {
    void* memory = nullptr;
    if (error == cudaSuccess) error = cudaMallocHost(&memory, kHalfBytes);
    *to = static_cast<std::byte*>(memory);
  }
  if (error == cudaSuccess) {
    stream->repeats_ =
        std::make_unique<CudaRepeats>(stream->stream_, stream->repeated_memory_, kHalfBytes);
    stream->spans_ = std::make_unique<CudaSpans>(stream->stream_, *stream->repeats_);
    return stream;
  }
  (void)cudaGetLastError();
  return cuda_error("making a stream and its pinned memory", error);
}

CudaStream::~CudaStream() {
  spans_.reset();
  repeats_.reset();
  for (Half& half : halves_) {
    if (half.copied != nullptr) cudaEventDestroy(half.copied);
    cudaFreeHost(half.memory);
  }
  cudaFreeHost(downloads_memory_);
  cudaFreeHost(repeated_memory_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

bool CudaStream::note(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return true;
  (void)cudaGetLastError();
  if (status_) status_ = cuda_error(what, error);
  return false;
}

void CudaStream::note(Error error) {
  if (error.code == ErrorCode::kDeadline) stuck_.set(true);
  if (status_) status_ = std::move(error);
}

/// Until `query` says that it is done.
template <typename Query>
Status CudaStream::poll(const Query& query, std::chrono::milliseconds deadline) {
  const cudaError_t error =
      kernels::cuda::poll(query, {.deadline = deadline, .spins = kSpins, .pause = kPause});
  if (error == cudaSuccess) return {};
  if (error == cudaErrorNotReady) {
    stuck_.set(true);
    return Error{ErrorCode::kDeadline, "CUDA: the GPU has not finished the enqueued work within " +
                                           seconds_text(deadline) +
                                           "; a kernel hangs, or the GPU is shared with others"};
  }
  note(cuda_error("a kernel or copy before this wait", error)
           .with_context(std::string("this process can run nothing more on this GPU") +
                         (kernels::cuda::is_hardware(error)
                              ? ""
                              : "; with CUDA_LAUNCH_BLOCKING=1 the message names "
                                "the instruction")));
  return status_;
}

Status CudaStream::wait(std::chrono::milliseconds deadline) {
  if (status_) note("recording an event", spans_->expect_wait());
  Status done = poll([this] { return cudaStreamQuery(stream_); }, deadline);
  if (!done) {
    downloads_.clear();  // whoever asked for them is told, and may be gone
    return done;
  }
  stuck_.set(false);
  if (status_) note("reading the times of events", spans_->report(trace::monotonic_ns()));
  for (const Download& download : downloads_)
    std::memcpy(download.to, download.from, download.bytes);
  downloads_.clear();
  downloads_used_ = 0;
  return status_;
}

/// Null where the GPU has failed.
std::byte* CudaStream::room(size_t bytes) {
  if (halves_[half_].used + bytes > kHalfBytes) {
    if (!note("recording an event", cudaEventRecord(halves_[half_].copied, stream_)))
      return nullptr;
    half_ = 1 - half_;
    // Never recorded: done.
    Status free = poll([this] { return cudaEventQuery(halves_[half_].copied); }, deadline_);
    if (!free) {
      note(std::move(free).error());
      return nullptr;
    }
    halves_[half_].used = 0;
  }
  Half& half = halves_[half_];
  std::byte* const memory = half.memory + half.used;
  half.used += (bytes + 63) / 64 * 64;
  half.used = std::min(half.used, kHalfBytes);
  return memory;
}

void CudaStream::begin_span(const trace::Span& span) {
  if (status_) note("recording an event", spans_->begin(span));
}
void CudaStream::end_span() {
  if (status_) note("recording an event", spans_->end());
}

void CudaStream::begin_part(int part, uint64_t key) {
  spans_->forget_part(part);  // what a wait has not told of
  if (status_) note("beginning to capture a step", repeats_->begin(part, key));
}

void CudaStream::end_part(bool is_whole) {
  const int part = repeats_->open_part();
  const bool counts = is_whole && status_.has_value();
  const bool is_kept =
      note("a step as a CUDA graph", repeats_->end(counts)) && counts && !repeats_->has_strayed();
  if (part >= 0 && !is_kept) spans_->forget_part(part);
  if (!is_whole || !repeats_->has_strayed()) return;
  note(Error{ErrorCode::kInternal,
             "CUDA: a step that is launched as a graph copied other data to the GPU than the step "
             "that the graph was captured of"});
}

void CudaStream::upload(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (repeats_->takes_uploads()) {
    std::byte* const memory = repeats_->take(bytes);
    if (memory == nullptr) return;  // the part's end says so
    std::memcpy(memory, from, bytes);
    if (!repeats_->enqueues()) return;
    note("copy to the GPU", cudaMemcpyAsync(to, memory, bytes, cudaMemcpyHostToDevice, stream_));
    return;
  }
  repeats_->measure(bytes);
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(bytes - done, kHalfBytes);
    std::byte* const memory = room(piece);
    if (memory == nullptr) return;
    std::memcpy(memory, static_cast<const std::byte*>(from) + done, piece);
    if (!note("copy to the GPU", cudaMemcpyAsync(static_cast<std::byte*>(to) + done, memory, piece,
                                                 cudaMemcpyHostToDevice, stream_))) {
      return;
    }
    done += piece;
  }
}

void CudaStream::download(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (repeats_->is_open()) {
    note(Error{ErrorCode::kInternal,
               "CUDA: a copy to host memory within a part of a step that may become a graph"});
    return;
  }
  for (size_t done = 0; done < bytes;) {
    if (downloads_used_ == kHalfBytes) {
      Status free = wait(deadline_);
      if (!free) {
        note(std::move(free).error());  // the rest is not copied: nobody may take it for whole
        return;
      }
    }
    const size_t piece = std::min(bytes - done, kHalfBytes - downloads_used_);
    std::byte* const memory = downloads_memory_ + downloads_used_;
    if (!note("copy from the GPU",
              cudaMemcpyAsync(memory, static_cast<const std::byte*>(from) + done, piece,
                              cudaMemcpyDeviceToHost, stream_))) {
      return;
    }
    downloads_.push_back({static_cast<std::byte*>(to) + done, memory, piece});
    downloads_used_ = std::min(kHalfBytes, (downloads_used_ + piece + 63) / 64 * 64);
    done += piece;
  }
}

}  // namespace trainyard::engine
