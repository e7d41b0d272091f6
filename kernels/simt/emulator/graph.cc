// Captures of streams, and the graphs that they make.

#include <algorithm>

#include "kernels/simt/emulator/streams.h"

namespace trainyard::simt::detail {
namespace {

bool is_before(const Clock& part, const Clock& whole) {
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] > (i < whole.size() ? whole[i] : 0)) return false;
  }
  return true;
}

cudaError_t refuse_broken(const std::string& what) {
  return refuse(cudaErrorStreamCaptureInvalidated,
                what + " in a capture that an earlier call has broken");
}

/// Whether the calling thread may make no call that waits for the device or allocates.
bool forbids(const SimtGraph& graph) {
  const bool is_own = graph.thread == std::this_thread::get_id();
  return graph.mode == cudaStreamCaptureModeGlobal ||
         (graph.mode == cudaStreamCaptureModeThreadLocal && is_own);
}

}  // namespace

cudaError_t capture(SimtStream& stream, Operation operation) {
  SimtGraph& graph = *stream.captures;
  if (graph.is_broken) return refuse_broken(operation.what);
  if (operation.run == nullptr && operation.event == nullptr) return cudaSuccess;
  graph.operations.push_back(std::move(operation));
  for (Clock* const clock : {&graph.counts, &stream.captured})
    if (clock->size() <= stream.id) clock->resize(stream.id + 1);
  stream.captured[stream.id] = ++graph.counts[stream.id];
  return cudaSuccess;
}

SimtGraph* capture_of(uint64_t number) {
  for (const auto& stream : streams.all) {
    if (stream->captures != nullptr && stream->captures->number == number) return stream->captures;
  }
  return nullptr;
}

cudaError_t break_capture(SimtGraph& graph, cudaError_t error, const std::string& what) {
  if (graph.is_broken) return refuse_broken(what);
  graph.is_broken = true;
  return refuse(error, what);
}

cudaError_t refuse_in_capture(const char* what) {
  for (const auto& stream : streams.all) {
    if (stream->captures == nullptr || !forbids(*stream->captures)) continue;
    return break_capture(*stream->captures, cudaErrorStreamCaptureUnsupported,
                         std::string(what) + " during a capture");
  }
  return cudaSuccess;
}

cudaError_t refuse_captured(const SimtEvent& event, const std::string& what) {
  const std::string text = what + " of an event that was recorded in a capture";
  SimtGraph* const graph = capture_of(event.captured_in);
  if (graph == nullptr) return refuse(cudaErrorCapturedEvent, text);
  return break_capture(*graph, cudaErrorCapturedEvent, text);
}

void drop_capture(SimtGraph& graph) {
  for (const auto& stream : streams.all) {
    if (stream->captures == &graph) stream->captures = nullptr;
  }
  delete &graph;
}

cudaError_t join_capture(SimtStream& stream, const SimtEvent& event) {
  SimtGraph* const graph = capture_of(event.captured_in);
  if (graph == nullptr || (stream.captures != nullptr && stream.captures != graph)) {
    return refuse(cudaErrorCapturedEvent, "a wait for an event of another capture");
  }
  if (graph->is_broken) return refuse_broken("a wait for an event");
  if (stream.captures == nullptr) stream.captured.clear();
  stream.captures = graph;
  join(stream.captured, event.captured_after);
  return cudaSuccess;
}

}  // namespace trainyard::simt::detail

using trainyard::simt::detail::break_capture;
using trainyard::simt::detail::device;
using trainyard::simt::detail::enqueue;
using trainyard::simt::detail::is_before;
using trainyard::simt::detail::Lock;
using trainyard::simt::detail::Operation;
using trainyard::simt::detail::refuse;
using trainyard::simt::detail::streams;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  SIMT_CALL(cudaStreamBeginCapture);
  const Lock lock(device.mutex);
  if (stream->captures != nullptr) {
    return break_capture(*stream->captures, cudaErrorStreamCaptureUnsupported,
                         "a capture within a capture");
  }
  stream->captures = new SimtGraph;
  stream->captures->origin = stream;
  stream->captures->number = ++streams.captures_begun;
  stream->captures->thread = std::this_thread::get_id();
  stream->captures->mode = mode;
  stream->captured.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  SIMT_CALL(cudaStreamEndCapture);
  const Lock lock(device.mutex);
  *graph = stream->captures;
  if (*graph == nullptr || (*graph)->origin != stream) {
    *graph = nullptr;
    return refuse(cudaErrorInvalidValue, "cudaStreamEndCapture on a stream that began no capture");
  }
  if ((*graph)->mode != cudaStreamCaptureModeRelaxed &&
      (*graph)->thread != std::this_thread::get_id()) {
    return break_capture(*std::exchange(*graph, nullptr), cudaErrorStreamCaptureWrongThread,
                         "cudaStreamEndCapture by another thread than began the capture");
  }
  for (const auto& other : streams.all) {
    if (other->captures == *graph) other->captures = nullptr;
  }
  const bool is_joined = is_before((*graph)->counts, stream->captured);
  if (is_joined && !(*graph)->is_broken) return cudaSuccess;
  const bool is_broken = (*graph)->is_broken;
  delete std::exchange(*graph, nullptr);
  if (is_broken) {
    return refuse(cudaErrorStreamCaptureInvalidated,
                  "cudaStreamEndCapture of a capture that an earlier call has broken");
  }
  return refuse(cudaErrorStreamCaptureUnjoined, "a capture ends before a stream that it forked to");
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  SIMT_CALL(cudaGraphInstantiate);
  *executable = new SimtGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  SIMT_CALL(cudaGraphLaunch);
  const Lock lock(device.mutex);
  ++trainyard::simt::detail::counters.graph_launches;
  for (const Operation& operation : executable->operations) {
    std::shared_ptr<SimtEvent::Record> records;
    if (operation.event != nullptr)
      records = operation.event->last = std::make_shared<SimtEvent::Record>();
    const cudaError_t error =
        enqueue(stream, operation.what, operation.run, operation.waits_for, std::move(records));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  SIMT_CALL(cudaGraphDestroy);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  SIMT_CALL(cudaGraphExecDestroy);
  delete executable;
  return cudaSuccess;
}
