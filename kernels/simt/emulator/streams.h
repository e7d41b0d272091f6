#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/simt/emulator/state.h"

/// What streams, events and graphs of the emulation are made of.

struct SimtEvent {
  struct Record {
    bool is_done = false;
    trainyard::simt::detail::Clock clock;
    std::chrono::steady_clock::time_point time;
  };
  std::shared_ptr<Record> last;
  uint64_t captured_in = 0;  ///< number of the capture that it was last recorded in; 0: in none
  /// Operations of each stream there that come before it.
  trainyard::simt::detail::Clock captured_after;
};

namespace trainyard::simt::detail {

struct Operation {
  const char* what;
  std::function<void()> run;
  std::shared_ptr<SimtEvent::Record> waits_for, records;
  Clock host;
  SimtEvent* event = nullptr;  ///< of a graph: each launch records it
};

}  // namespace trainyard::simt::detail

struct SimtStream {
  uint32_t id = 0;
  std::deque<trainyard::simt::detail::Operation> queue;
  trainyard::simt::detail::Clock clock;
  SimtGraph* captures = nullptr;  ///< a graph under capture that this stream has begun or joined
  /// Operations of each stream there that come before the next one.
  trainyard::simt::detail::Clock captured;
};

/// Operations in the order of their capture, which is one of the orders that the graph allows.
struct SimtGraph {
  SimtStream* origin = nullptr;
  uint64_t number = 0;
  std::thread::id thread;  ///< that began the capture
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool is_broken = false;  ///< by a call that a capture does not allow: it can only be ended
  std::vector<trainyard::simt::detail::Operation> operations;
  trainyard::simt::detail::Clock counts;  ///< operations by stream
};

namespace trainyard::simt::detail {

struct Streams {
  std::vector<std::unique_ptr<SimtStream>> all;
  uint32_t created = 0;
  uint64_t captures_begun = 0;
  Clock host;                           ///< what the host has waited for
  const SimtStream* running = nullptr;  ///< whose operation runs
};
extern Streams streams;

// faults.cc

/// Gives an operation, which the call under way enqueues, its fault.
void plan_fault(Operation& operation);
/// Notes that the call under way waits for work which may never be done.
void note_endless_wait();

// stream.cc

/// One more operation of a stream, or of the graph that it captures, after what it waits for.
cudaError_t enqueue(cudaStream_t stream, const char* what, std::function<void()> run,
                    std::shared_ptr<SimtEvent::Record> waits_for,
                    std::shared_ptr<SimtEvent::Record> records);

// graph.cc

/// Adds an operation to the capture of a stream. Errors: cudaErrorStreamCaptureInvalidated.
cudaError_t capture(SimtStream& stream, Operation operation);
/// The graph that the capture of this number makes; null: it has ended.
SimtGraph* capture_of(uint64_t number);
/// Refuses a call that the capture does not allow, and breaks the capture.
cudaError_t break_capture(SimtGraph& graph, cudaError_t error, const std::string& what);
/// Refuses to ask a captured event anything.
cudaError_t refuse_captured(const SimtEvent& event, const std::string& what);
/// Ends a capture without a graph.
void drop_capture(SimtGraph& graph);
/// A stream waits for an event that was recorded in a capture, which it joins.
cudaError_t join_capture(SimtStream& stream, const SimtEvent& event);

}  // namespace trainyard::simt::detail
