#include "worker/device/cuda_spans.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace trainyard::engine {
namespace {

/// As cudaEventElapsedTime() has it.
int64_t nanoseconds(float ms) { return std::llround(static_cast<double>(ms) * 1e6); }

}  // namespace

CudaSpans::~CudaSpans() {
  for (cudaEvent_t event : all_)
    cudaEventDestroy(event);
}

cudaError_t CudaSpans::make(cudaEvent_t& event) {
  const cudaError_t error = cudaEventCreateWithFlags(&event, 0);
  if (error == cudaSuccess) all_.push_back(event);
  return error;
}

cudaError_t CudaSpans::mark(Mark& to) {
  if (repeats_.takes_uploads()) {
    to.part = repeats_.open_part();
    return repeats_.mark(to.event);
  }
  to.part = -1;
  if (free_.empty()) {
    if (const cudaError_t error = make(to.event); error != cudaSuccess) return error;
  } else {
    to.event = free_.back();
    free_.pop_back();
  }
  return cudaEventRecord(to.event, stream_);
}

void CudaSpans::release(const Mark& mark) {
  if (mark.part < 0 && mark.event != nullptr) free_.push_back(mark.event);
}

cudaError_t CudaSpans::begin(const trace::Span& span) {
  if (open_) release(open_->begin);
  open_.reset();
  if (sink_ == nullptr) return cudaSuccess;
  Entry entry{.span = span, .begin = {}, .end = {}};
  if (const cudaError_t error = mark(entry.begin); error != cudaSuccess) return error;
  open_ = entry;
  return cudaSuccess;
}

cudaError_t CudaSpans::end() {
  if (!open_) return cudaSuccess;
  Entry entry = *std::exchange(open_, std::nullopt);
  const cudaError_t error = mark(entry.end);
  if (error == cudaSuccess) ended_.push_back(entry);
  return error;
}

void CudaSpans::forget_part(int part) {
  const auto is_of = [part](const Entry& entry) {
    return entry.begin.part == part || entry.end.part == part;
  };
  if (open_ && is_of(*open_)) {
    release(open_->begin);
    open_.reset();
  }
  const auto gone = std::stable_partition(ended_.begin(), ended_.end(),
                                          [&](const Entry& entry) { return !is_of(entry); });
  for (auto entry = gone; entry != ended_.end(); ++entry) {
    release(entry->begin);
    release(entry->end);
  }
  ended_.erase(gone, ended_.end());
}

cudaError_t CudaSpans::expect_wait() {
  if (ended_.empty()) return cudaSuccess;
  if (last_ == nullptr) {
    if (const cudaError_t error = make(last_); error != cudaSuccess) return error;
  }
  return cudaEventRecord(last_, stream_);
}

cudaError_t CudaSpans::report(int64_t now_ns) {
  cudaError_t error = cudaSuccess;
  for (Entry& entry : ended_) {
    float since_begin_ms = 0;
    float since_end_ms = 0;
    if (error == cudaSuccess)
      error = cudaEventElapsedTime(&since_begin_ms, entry.begin.event, last_);
    if (error == cudaSuccess) error = cudaEventElapsedTime(&since_end_ms, entry.end.event, last_);
    if (error == cudaSuccess && sink_ != nullptr) {
      entry.span.begin_ns = now_ns - nanoseconds(since_begin_ms);
      entry.span.end_ns = now_ns - nanoseconds(since_end_ms);
      sink_->add(trace::Track::kDevice, entry.span);
    }
    release(entry.begin);
    release(entry.end);
  }
  ended_.clear();
  return error;
}

}  // namespace trainyard::engine
