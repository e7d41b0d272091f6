#pragma once

#include <optional>
#include <vector>

#include "kernels/simt/runtime.h"
#include "worker/device/cuda_repeats.h"
#include "worker/trace/span.h"

namespace trainyard::engine {

/// When the GPU came to the begin and to the end of each instruction, for a trace: an event before
/// and one after what an instruction enqueues. Nobody waits for them. Once the host has waited for
/// the stream their times are read, counted from the last event before that wait: the host finds it
/// passed at most one pause between two polls later than it was. Events within a part that is
/// launched as a graph are nodes of the graph, which every launch records anew.
///
/// Without a sink nothing is recorded. One thread at a time.
class CudaSpans {
 public:
  /// `stream` and `repeats` outlive it.
  CudaSpans(cudaStream_t stream, CudaRepeats& repeats) : stream_(stream), repeats_(repeats) {}
  ~CudaSpans();
  CudaSpans(const CudaSpans&) = delete;
  CudaSpans& operator=(const CudaSpans&) = delete;

  /// Who is told from now on, on Track::kDevice; null: nobody. Not owned.
  void report_to(trace::SpanSink* sink) { sink_ = sink; }
  /// One span is open at a time: one that is begun before the last has ended takes its place.
  cudaError_t begin(const trace::Span& span);
  /// Without an open span nothing happens.
  cudaError_t end();
  /// The events of this part's graph go away.
  void forget_part(int part);

  /// Before the host waits for the stream. No span ends between this and report().
  cudaError_t expect_wait();
  /// After it has, at `now_ns` of trace::monotonic_ns(): tells of all spans that had ended before.
  cudaError_t report(int64_t now_ns);

 private:
  struct Mark {
    cudaEvent_t event = nullptr;
    int part = -1;  ///< whose graph has it; -1: it is this class's
  };
  struct Entry {
    trace::Span span;
    Mark begin, end;
  };
  cudaError_t mark(Mark& to);
  cudaError_t make(cudaEvent_t& event);
  void release(const Mark& mark);

  cudaStream_t stream_;
  CudaRepeats& repeats_;
  trace::SpanSink* sink_ = nullptr;
  std::vector<cudaEvent_t> all_;   ///< owned
  std::vector<cudaEvent_t> free_;  ///< of these
  std::optional<Entry> open_;
  std::vector<Entry> ended_;
  cudaEvent_t last_ = nullptr;  ///< before the wait
};

}  // namespace trainyard::engine
