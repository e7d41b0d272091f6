// Streams and events. A stream is a queue: seed 0 runs an operation as it is enqueued, any
// other seed runs operations in any order that streams and events allow, when somebody waits.

#include <algorithm>
#include <chrono>

#include "kernels/simt/emulator/streams.h"

using trainyard::simt::detail::device;
using trainyard::simt::detail::last_error;
using trainyard::simt::detail::Lock;
using trainyard::simt::detail::refuse;

namespace trainyard::simt::detail {

Streams streams;

namespace {

void run_now(const Operation& operation, SimtStream& stream) {
  if (device.sticky != cudaSuccess) return;
  if (observer != nullptr) observer->operation_begins(operation.what, stream.id, stream.clock);
  hide_memory(false);
  const SimtStream* const outer = std::exchange(streams.running, &stream);
  operation.run();
  streams.running = outer;
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

/// The most threads that a block of a kernel may have, by what __launch_bounds__ is in
/// kernels/simt/host.h.
uint64_t bound_of(const void* kernel) {
  constexpr unsigned char kNop = 0x90;
  constexpr unsigned char kEndBranch[] = {0xf3, 0x0f, 0x1e, 0xfa};  // before the nops, if at all
  const auto* code = static_cast<const unsigned char*>(kernel);
  if (std::equal(std::begin(kEndBranch), std::end(kEndBranch), code)) code += sizeof kEndBranch;
  uint64_t warps = 0;
  while (code[warps] == kNop)
    ++warps;
  return warps == 0 ? kThreadsMax : warps * 32;
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
  plan_fault(operation);
  if (stream->captures != nullptr) return capture(*stream, std::move(operation));
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
  SIMT_CALL(cudaLaunchKernel);
  const Lock lock(device.mutex);
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kThreadsMax || block.z > 64 || grid.x == 0 || grid.y == 0 ||
      grid.z == 0 || grid.x > 0x7fffffffU || grid.y > 65535 || grid.z > 65535) {
    return refuse(cudaErrorInvalidConfiguration,
                  "launch of " + line_of(kernel) + ": grid or block is outside what a device runs");
  }
  if (threads > bound_of(kernel)) {
    return refuse(cudaErrorInvalidConfiguration,
                  "launch of " + line_of(kernel) + ": " + std::to_string(threads) +
                      " threads, at most " + std::to_string(bound_of(kernel)) +
                      " by its __launch_bounds__");
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

class Gate : public SimtEvent::Record {};

std::shared_ptr<Gate> make_gate() { return std::make_shared<Gate>(); }
void join_gate(Gate& gate) {
  const Lock lock(device.mutex);
  detail::join(gate.clock, detail::streams.running->clock);
}
void open_gate(Gate& gate) {
  const Lock lock(device.mutex);
  gate.is_done = true;
}
cudaError_t enqueue_work(cudaStream_t stream, const char* what, std::function<void()> work,
                         std::shared_ptr<Gate> gate) {
  return detail::enqueue(stream, what, std::move(work), std::move(gate), nullptr);
}
void touch_device(const void* address, size_t bytes, bool writes) {
  detail::touch(address, bytes, writes ? detail::Access::kWrite : detail::Access::kRead, nullptr);
}

bool has_failed() {
  const Lock lock(device.mutex);
  return device.sticky != cudaSuccess;
}

void reset_emulation() {
  const Lock lock(device.mutex);
  device.sticky = last_error = cudaSuccess;
  device.error_text.clear();
  device.has_failed = false;
  for (const auto& stream : detail::streams.all)
    stream->queue.clear();
}

}  // namespace trainyard::simt

using trainyard::simt::detail::break_capture;
using trainyard::simt::detail::enqueue;
using trainyard::simt::detail::note_endless_wait;
using trainyard::simt::detail::refuse_captured;
using trainyard::simt::detail::refuse_in_capture;
using trainyard::simt::detail::run_until;
using trainyard::simt::detail::streams;

namespace {

/// CUDA keeps that as the thread's last error, for whoever asks next.
cudaError_t not_ready() { return last_error = cudaErrorNotReady; }

void finish(SimtStream& stream) {
  run_until([&] { return stream.queue.empty(); });
  trainyard::simt::detail::join(streams.host, stream.clock);
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  SIMT_CALL(cudaStreamCreateWithFlags);
  const Lock lock(device.mutex);
  streams.all.push_back(std::make_unique<SimtStream>());
  *stream = streams.all.back().get();
  (*stream)->id = streams.created++;
  return cudaSuccess;
}
/// Any order that is allowed is taken anyway.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  SIMT_CALL(cudaStreamCreateWithPriority);
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  SIMT_CALL(cudaDeviceGetStreamPriorityRange);
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  SIMT_CALL(cudaStreamSynchronize);
  const Lock lock(device.mutex);
  if (stream->captures != nullptr) {
    return break_capture(*stream->captures, cudaErrorStreamCaptureUnsupported,
                         "cudaStreamSynchronize during a capture");
  }
  finish(*stream);
  if (!stream->queue.empty()) note_endless_wait();
  return device.sticky;
}
/// Waits for nothing; CUDA frees a stream whose work is not done once it is.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  SIMT_CALL(cudaStreamDestroy);
  const Lock lock(device.mutex);
  if (stream->captures == nullptr) finish(*stream);
  const cudaError_t error =
      stream->captures != nullptr ? cudaStreamSynchronize(stream) : device.sticky;
  if (stream->captures != nullptr && stream->captures->origin == stream) {
    trainyard::simt::detail::drop_capture(*stream->captures);
  }
  std::erase_if(streams.all, [&](const auto& s) { return s.get() == stream; });
  return error;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  SIMT_CALL(cudaStreamQuery);
  const Lock lock(device.mutex);
  if (stream->captures != nullptr) {
    return break_capture(*stream->captures, cudaErrorStreamCaptureUnsupported,
                         "cudaStreamQuery during a capture");
  }
  if (device.sticky != cudaSuccess) return device.sticky;
  if (stream->queue.empty()) {
    trainyard::simt::detail::join(streams.host, stream->clock);
    return cudaSuccess;
  }
  bool is_first = true;
  run_until([&] { return !std::exchange(is_first, false); });
  return not_ready();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  SIMT_CALL(cudaStreamWaitEvent);
  const Lock lock(device.mutex);
  if (event->captured_in != 0) return trainyard::simt::detail::join_capture(*stream, *event);
  if (event->last == nullptr) return cudaSuccess;  // never recorded
  if (stream->captures != nullptr) {
    return break_capture(*stream->captures, cudaErrorStreamCaptureIsolation,
                         "a captured stream waits for uncaptured work");
  }
  return enqueue(stream, "wait", nullptr, event->last, nullptr);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  SIMT_CALL(cudaEventCreateWithFlags);
  *event = new SimtEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  SIMT_CALL(cudaEventDestroy);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  SIMT_CALL(cudaEventRecord);
  const Lock lock(device.mutex);
  const bool is_captured = stream != nullptr && stream->captures != nullptr;
  event->captured_in = is_captured ? stream->captures->number : 0;
  if (is_captured) {
    event->captured_after = stream->captured;
    return trainyard::simt::detail::capture(*stream, {.what = "a record of an event"});
  }
  event->last = std::make_shared<SimtEvent::Record>();
  return enqueue(stream, "record", nullptr, nullptr, event->last);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  SIMT_CALL(cudaEventRecordWithFlags);
  if (flags == 0) return cudaEventRecord(event, stream);
  const Lock lock(device.mutex);
  if (flags != cudaEventRecordExternal || stream == nullptr || stream->captures == nullptr) {
    return refuse(cudaErrorInvalidValue,
                  "cudaEventRecordWithFlags: flags other than External, or outside a capture");
  }
  event->captured_in = 0;
  return trainyard::simt::detail::capture(*stream,
                                          {.what = "a record of an event", .event = event});
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  SIMT_CALL(cudaEventSynchronize);
  const Lock lock(device.mutex);
  if (event->captured_in != 0) return refuse_captured(*event, "cudaEventSynchronize");
  if (event->last == nullptr) return cudaSuccess;
  run_until([&] { return event->last->is_done; });
  if (!event->last->is_done) note_endless_wait();
  trainyard::simt::detail::join(streams.host, event->last->clock);
  return device.sticky;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  SIMT_CALL(cudaEventQuery);
  const Lock lock(device.mutex);
  if (event->captured_in != 0) return refuse_captured(*event, "cudaEventQuery");
  if (device.sticky != cudaSuccess) return device.sticky;
  if (event->last != nullptr && !event->last->is_done) {
    bool is_first = true;
    run_until([&] { return !std::exchange(is_first, false); });
    return not_ready();
  }
  if (event->last != nullptr) trainyard::simt::detail::join(streams.host, event->last->clock);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  SIMT_CALL(cudaEventElapsedTime);
  const Lock lock(device.mutex);
  for (const cudaEvent_t event : {start, end}) {
    if (event->captured_in != 0) return refuse_captured(*event, "cudaEventElapsedTime");
  }
  if (start->last == nullptr || end->last == nullptr) {
    return refuse(cudaErrorInvalidResourceHandle, "time between events that were not recorded");
  }
  if (!start->last->is_done || !end->last->is_done) return not_ready();
  *ms = std::chrono::duration<float, std::milli>(end->last->time - start->last->time).count();
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  SIMT_CALL(cudaDeviceSynchronize);
  const Lock lock(device.mutex);
  if (const cudaError_t error = refuse_in_capture("cudaDeviceSynchronize"); error != cudaSuccess)
    return error;
  for (const auto& stream : streams.all) {
    if (stream->captures == nullptr) (void)cudaStreamSynchronize(stream.get());
  }
  return device.sticky;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  SIMT_CALL(cudaLaunchHostFunc);
  return enqueue(stream, "host function", [=] { function(data); });
}
