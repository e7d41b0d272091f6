// Streams, events and graphs. A stream is a queue: seed 0 runs an operation as it is enqueued, any
// other seed runs operations in any order that streams and events allow, when somebody waits.

#include <algorithm>
#include <chrono>
#include <deque>

#include "kernels/simt/emulator/state.h"

using trainyard::simt::detail::Clock;
using trainyard::simt::detail::device;
using trainyard::simt::detail::Lock;
using trainyard::simt::detail::refuse;

struct SimtEvent {
  struct Record {
    bool is_done = false;
    Clock clock;
    std::chrono::steady_clock::time_point time;
  };
  std::shared_ptr<Record> last;
  SimtGraph* captured_in = nullptr;
};

namespace {

struct Operation {
  const char* what;
  std::function<void()> run;
  std::shared_ptr<SimtEvent::Record> waits_for, records;
  Clock host;
};

}  // namespace

struct SimtStream {
  uint32_t id = 0;
  std::deque<Operation> queue;
  Clock clock;
  SimtGraph* captures = nullptr;  ///< a graph under capture that this stream has begun or joined
};

/// Operations in the order of their capture, which is one of the orders that the graph allows.
struct SimtGraph {
  SimtStream* origin = nullptr;
  std::vector<Operation> operations;
};

namespace trainyard::simt::detail {
namespace {

struct Streams {
  std::vector<std::unique_ptr<SimtStream>> all;
  uint32_t created = 0;
  Clock host;  ///< what the host has waited for
};
Streams streams;

void run_now(const Operation& operation, SimtStream& stream) {
  if (device.sticky != cudaSuccess) return;
  if (observer != nullptr) observer->operation_begins(operation.what, stream.id, stream.clock);
  hide_memory(false);
  operation.run();
  hide_memory(true);
}

void run_first(SimtStream& stream) {
  const Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (stream.clock.size() <= stream.id) stream.clock.resize(stream.id + 1);
  ++stream.clock[stream.id];
  join(stream.clock, operation.host);
  if (operation.waits_for != nullptr) join(stream.clock, operation.waits_for->clock);
  if (operation.records != nullptr) {
    operation.records->is_done = true;
    operation.records->time = std::chrono::steady_clock::now();
    operation.records->clock = stream.clock;
  }
  if (operation.run != nullptr) run_now(operation, stream);
}

/// Runs what may run, in any order that is allowed, until `is_enough` or nothing may.
template <typename Enough>
void run_until(const Enough& is_enough) {
  std::vector<SimtStream*> runnable;
  while (!is_enough()) {
    runnable.clear();
    for (const auto& stream : streams.all) {
      if (stream->queue.empty()) continue;
      const Operation& first = stream->queue.front();
      if (first.waits_for == nullptr || first.waits_for->is_done) runnable.push_back(stream.get());
    }
    if (runnable.empty()) return;
    run_first(*runnable[is_random() ? draw(runnable.size()) : 0]);
  }
}

}  // namespace

void join(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i)
    into[i] = std::max(into[i], other[i]);
}

cudaError_t enqueue(cudaStream_t stream, const char* what, std::function<void()> run,
                    std::shared_ptr<SimtEvent::Record> waits_for,
                    std::shared_ptr<SimtEvent::Record> records) {
  const Lock lock(device.mutex);
  if (stream == nullptr) {
    return refuse(cudaErrorInvalidResourceHandle,
                  std::string(what) + " on the legacy default stream: name a stream");
  }
  if (device.sticky != cudaSuccess) return device.sticky;
  Operation operation{what, std::move(run), std::move(waits_for), std::move(records), streams.host};
  if (stream->captures != nullptr) {
    if (operation.run != nullptr) stream->captures->operations.push_back(std::move(operation));
    return cudaSuccess;
  }
  stream->queue.push_back(std::move(operation));
  if (!is_random()) {
    run_until([] { return false; });
  } else if (draw(4) == 0) {  // the device works while the host goes on
    size_t steps = draw(4);
    run_until([&] { return steps-- == 0; });
  }
  return device.sticky;
}
cudaError_t enqueue(cudaStream_t stream, const char* what, std::function<void()> run) {
  return enqueue(stream, what, std::move(run), nullptr, nullptr);
}

cudaError_t enqueue_launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                           cudaStream_t stream, std::function<void()> body) {
  const Lock lock(device.mutex);
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffffU || grid.y > 65535 || grid.z > 65535) {
    return refuse(cudaErrorInvalidConfiguration,
                  "launch of " + line_of(kernel) + ": grid or block is outside what a device runs");
  }
  if (shared_bytes > size_t{227} * 1024) {
    return refuse(cudaErrorInvalidValue, "launch of " + line_of(kernel) + ": " +
                                             std::to_string(shared_bytes) +
                                             " bytes of shared memory, at most 232448");
  }
  return enqueue(stream, "kernel", [=, body = std::move(body)] {
    run_grid(kernel, grid, block, shared_bytes, body);
  });
}

}  // namespace trainyard::simt::detail

namespace trainyard::simt {

void reset_emulation() {
  const Lock lock(device.mutex);
  device.sticky = device.last = cudaSuccess;
  device.error_text.clear();
  device.has_failed = false;
  for (const auto& stream : detail::streams.all)
    stream->queue.clear();
}

}  // namespace trainyard::simt

using trainyard::simt::detail::enqueue;
using trainyard::simt::detail::run_until;
using trainyard::simt::detail::streams;

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureUnjoined:
      return "dependency created on uncaptured work";
  }
  return "unknown error";
}
cudaError_t cudaGetLastError() {
  const Lock lock(device.mutex);
  const cudaError_t error = device.sticky != cudaSuccess ? device.sticky : device.last;
  device.last = cudaSuccess;
  return error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(device.mutex);
  streams.all.push_back(std::make_unique<SimtStream>());
  *stream = streams.all.back().get();
  (*stream)->id = streams.created++;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(device.mutex);
  if (stream->captures != nullptr) {
    return refuse(cudaErrorStreamCaptureUnsupported, "cudaStreamSynchronize during capture");
  }
  run_until([&] { return stream->queue.empty(); });
  trainyard::simt::detail::join(streams.host, stream->clock);
  return device.sticky;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(device.mutex);
  const cudaError_t error = cudaStreamSynchronize(stream);
  std::erase_if(streams.all, [&](const auto& s) { return s.get() == stream; });
  return error;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Lock lock(device.mutex);
  if (device.sticky != cudaSuccess) return device.sticky;
  if (stream->queue.empty()) {
    trainyard::simt::detail::join(streams.host, stream->clock);
    return cudaSuccess;
  }
  bool is_first = true;
  run_until([&] { return !std::exchange(is_first, false); });
  return cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(device.mutex);
  if (event->captured_in != nullptr) {  // joins the capture, behind all it has so far
    stream->captures = event->captured_in;
    return cudaSuccess;
  }
  if (event->last == nullptr) return cudaSuccess;  // never recorded
  if (stream->captures != nullptr) {
    return refuse(cudaErrorStreamCaptureUnjoined, "a captured stream waits for uncaptured work");
  }
  return enqueue(stream, "wait", nullptr, event->last, nullptr);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new SimtEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(device.mutex);
  event->captured_in = stream != nullptr ? stream->captures : nullptr;
  if (event->captured_in != nullptr) return cudaSuccess;
  event->last = std::make_shared<SimtEvent::Record>();
  return enqueue(stream, "record", nullptr, nullptr, event->last);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(device.mutex);
  if (event->last == nullptr) return cudaSuccess;
  run_until([&] { return event->last->is_done; });
  trainyard::simt::detail::join(streams.host, event->last->clock);
  return device.sticky;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(device.mutex);
  if (device.sticky != cudaSuccess) return device.sticky;
  if (event->last != nullptr && !event->last->is_done) return cudaErrorNotReady;
  if (event->last != nullptr) trainyard::simt::detail::join(streams.host, event->last->clock);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock(device.mutex);
  if (start->last == nullptr || end->last == nullptr) {
    return refuse(cudaErrorInvalidResourceHandle, "time between events that were not recorded");
  }
  if (!start->last->is_done || !end->last->is_done) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(end->last->time - start->last->time).count();
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock(device.mutex);
  for (const auto& stream : streams.all)
    (void)cudaStreamSynchronize(stream.get());
  return device.sticky;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return enqueue(stream, "host function", [=] { function(data); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock(device.mutex);
  if (stream->captures != nullptr) {
    return refuse(cudaErrorStreamCaptureUnsupported, "a capture within a capture");
  }
  stream->captures = new SimtGraph;
  stream->captures->origin = stream;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(device.mutex);
  *graph = stream->captures;
  if (*graph == nullptr || (*graph)->origin != stream) {
    return refuse(cudaErrorInvalidValue, "cudaStreamEndCapture on a stream that began no capture");
  }
  for (const auto& other : streams.all) {
    if (other->captures == *graph) other->captures = nullptr;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new SimtGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Lock lock(device.mutex);
  for (const Operation& operation : executable->operations) {
    const cudaError_t error = enqueue(stream, operation.what, operation.run);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
