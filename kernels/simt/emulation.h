#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/simt/runtime.h"

/// What a test says to the emulation and asks of it. Single-threaded: one launch runs at a time,
/// under one lock, whichever host thread asks.
namespace trainyard::simt {

struct EmulationOptions {
  /// Seed 0 runs threads and blocks in index order and each stream operation at once. Any other
  /// seed draws the order of threads, blocks and streams, and when background copies arrive.
  uint64_t seed = 0;
  /// Errors are written to stderr as well.
  bool print_errors = true;
  /// How many allocations succeed before one fails with cudaErrorMemoryAllocation; -1: none fails.
  int64_t fail_allocation = -1;
  /// Whether device memory may be allocated where other memory was freed.
  bool reuses_addresses = true;

  // The machine that a program finds.
  int devices = 1;
  int driver_version = 13000, runtime_version = 13000;  ///< as CUDA writes 13.0
  int capability_major = 9, capability_minor = 0;
  int64_t memory_bytes = int64_t{80} << 30U;
  std::string name = "emulation";
};
EmulationOptions& emulation_options();

/// The first error since the last reset, with block, thread and source line; empty without one.
const std::string& emulation_error();
/// Whether no call works any more, as something that was enqueued has failed.
bool has_failed();
/// Forgets the error and drops what the streams still hold, so that the next test starts clean.
void reset_emulation();
/// Number of device allocations not yet freed.
int64_t live_allocations();
/// And their bytes.
int64_t allocated_bytes();
/// Frees all memory that is allocated, pinned memory included, as the end of a process does.
void free_everything();
/// Number of pinned host allocations not yet freed, and their bytes.
int64_t live_host_allocations();
int64_t allocated_host_bytes();

/// Whether the program is linked with the race checker.
bool has_race_checker();
/// Whether host code that touches device memory ends the process: under AddressSanitizer.
bool hides_device_memory();

/// What an operation of one stream waits for and those of others bring about: what a library's
/// kernels on several GPUs do by themselves.
class Gate;
std::shared_ptr<Gate> make_gate();
/// Within an operation of a stream: what comes after the gate comes after that stream's work, too.
void join_gate(Gate& gate);
/// Lets everybody through.
void open_gate(Gate& gate);
/// Enqueues `work`, which runs once the gate is open (null: at once). It may touch device memory.
cudaError_t enqueue_work(cudaStream_t stream, const char* what, std::function<void()> work,
                         std::shared_ptr<Gate> gate = nullptr);
/// Within such work: tells the race checker of an access.
void touch_device(const void* address, size_t bytes, bool writes);

/// What goes wrong at a call of CUDA's runtime or of a double of a library.
enum class CallFault : uint8_t {
  kNone,
  kError,      ///< the call does nothing and answers with cudaErrorUnknown
  kHang,       ///< the call returns once faults are released, and answers with cudaErrorUnknown
  kLateError,  ///< what the call enqueued fails when the GPU comes to it (cudaErrorLaunchFailure),
               ///< and all after it
  kNeverDone,  ///< what the call enqueued is not done before faults are released
};
/// The `at`-th call of a function, from 0.
struct NumberedCall {
  std::string function;
  int64_t at = 0;
};
/// The fault of one call, and all calls that were seen.
struct CallFaults {
  CallFault fault = CallFault::kNone;
  /// The `at`-th call (from 0) of the function of this name, by threads whose GPU is `device`.
  std::string function;
  int device = 0;
  int64_t at = 0;
  std::optional<cudaError_t> error;  ///< that it fails with, in place of those above

  // What was seen.
  std::map<std::string, int64_t> calls;     ///< of `device`, by function
  std::map<std::string, int64_t> enqueued;  ///< of those, calls that enqueued something
  bool has_happened = false;
  /// The first call on `device` that would not return, as what is never done comes before it.
  std::string waits_forever;
  /// Where calls come from: return addresses of the innermost functions, one list per place, and
  /// the first call from there. Taken while `records_places`.
  bool records_places = false;
  std::map<std::vector<const void*>, NumberedCall> places;
};
/// Of the whole process. Not to be touched while ranks run.
CallFaults& call_faults();
/// Whether the fault has happened; at any time.
bool fault_has_happened();
/// Forgets fault, calls and places. Nothing is hanging any more.
void reset_call_faults();
/// Lets calls that hang return, and what is never done be done.
void release_call_faults();

/// A call of a library's double on the calling thread: counted, and given its fault. Calls within a
/// call are not counted.
class LibraryCall {
 public:
  explicit LibraryCall(const char* function);
  /// By a thread that is about to choose another GPU.
  LibraryCall(const char* function, int device);
  ~LibraryCall();
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;
  /// Whether it answers with an error and does nothing.
  bool fails() const { return fails_; }

 private:
  bool fails_ = false;
};

struct EmulationCounters {
  uint64_t launches = 0, blocks = 0, threads = 0;
  uint64_t graph_launches = 0;
};
const EmulationCounters& emulation_counters();

}  // namespace trainyard::simt
