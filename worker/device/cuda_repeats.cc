#include "worker/device/cuda_repeats.h"

#include "common/base/check.h"

namespace trainyard::engine {

CudaRepeats::~CudaRepeats() {
  for (Part& part : parts_)
    forget(part);
}

void CudaRepeats::forget(Part& part) {
  if (part.graph != nullptr) cudaGraphExecDestroy(part.graph);
  for (cudaEvent_t event : part.marks)
    cudaEventDestroy(event);
  part = {};
}

cudaError_t CudaRepeats::begin(int part, uint64_t key) {
  TRAINYARD_CHECK(open_ < 0);
  Part& of = parts_[static_cast<size_t>(part)];
  if (of.key != key) {
    if (part == 0 && of.runs > 0) ++changes_;
    forget(of);
  }
  of.key = key;
  open_ = part;
  next_ = used_ = next_mark_ = 0;
  has_strayed_ = false;
  const size_t room = part == 0 ? bytes_ : 0;
  if (part == 0) is_too_large_ = of.measured > room;
  if (of.graph != nullptr) {
    mode_ = Mode::kRepeated;
  } else if (of.runs == 0 || of.measured > room) {
    mode_ = Mode::kPlain;
  } else {
    mode_ = of.runs == 1 ? Mode::kMeasured : Mode::kCaptured;
  }
  if (mode_ != Mode::kCaptured) return cudaSuccess;
  of.uploads.clear();
  // Other threads may allocate meanwhile.
  const cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  if (error != cudaSuccess) mode_ = Mode::kPlain;
  return error;
}

std::string_view CudaRepeats::why_plain() const {
  if (is_too_large_) return "a step has more tokens than the pinned memory of a graph's copies";
  if (changes_ >= kChanges) return "steps differ in their sequences or in where their memory is";
  return {};
}

void CudaRepeats::measure(size_t bytes) {
  if (mode_ == Mode::kMeasured) parts_[static_cast<size_t>(open_)].measured += padded(bytes);
}

std::byte* CudaRepeats::take(size_t bytes) {
  Part& part = parts_[static_cast<size_t>(open_)];
  const bool is_new = mode_ == Mode::kCaptured;
  if (is_new) part.uploads.push_back(bytes);
  const bool is_known = next_ < part.uploads.size() && part.uploads[next_] == bytes;
  if (!is_known || used_ + padded(bytes) > bytes_) {
    has_strayed_ = true;
    return nullptr;
  }
  std::byte* const to = memory_ + used_;
  used_ += padded(bytes);
  ++next_;
  return to;
}

cudaError_t CudaRepeats::mark(cudaEvent_t& event) {
  Part& part = parts_[static_cast<size_t>(open_)];
  if (mode_ == Mode::kCaptured) {
    const cudaError_t error = cudaEventCreateWithFlags(&event, 0);
    if (error != cudaSuccess) return error;
    part.marks.push_back(event);
    return cudaEventRecordWithFlags(event, stream_, cudaEventRecordExternal);
  }
  const bool is_known = next_mark_ < part.marks.size();
  event = is_known ? part.marks[next_mark_++] : nullptr;
  has_strayed_ = has_strayed_ || !is_known;
  return cudaSuccess;
}

cudaError_t CudaRepeats::end(bool is_whole) {
  if (open_ < 0) return cudaSuccess;
  Part& part = parts_[static_cast<size_t>(open_)];
  const Mode mode = mode_;
  open_ = -1;
  mode_ = Mode::kPlain;
  cudaError_t error = cudaSuccess;
  if (mode == Mode::kCaptured) {
    cudaGraph_t graph = nullptr;
    error = cudaStreamEndCapture(stream_, &graph);
    is_whole = is_whole && !has_strayed_;
    if (error == cudaSuccess && is_whole) error = cudaGraphInstantiate(&part.graph, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
  const bool is_all = next_ == part.uploads.size() && next_mark_ == part.marks.size();
  if (mode == Mode::kRepeated && !is_all) has_strayed_ = true;
  if (error != cudaSuccess || !is_whole || has_strayed_) {
    forget(part);
    return error;
  }
  ++part.runs;
  if (part.graph != nullptr) changes_ = 0;
  return part.graph != nullptr ? cudaGraphLaunch(part.graph, stream_) : cudaSuccess;
}

}  // namespace trainyard::engine
