// Faults of calls, which tests plant: errors, calls that hang, work that fails late or is never
// done.

#include <array>
#include <condition_variable>
#include <execinfo.h>
#include <utility>

#include "kernels/simt/emulator/streams.h"

namespace trainyard::simt {
namespace detail {
namespace {

/// Frames of a place: from the call to the function of the product that makes it, through what is
/// between them.
constexpr int kFrames = 16;

CallFaults the_faults;
std::mutex mutex;  // innermost: no other is taken under it
std::condition_variable released;
bool is_released = false;
int hanging = 0;
std::shared_ptr<SimtEvent::Record> never = std::make_shared<SimtEvent::Record>();

thread_local int depth = 0;                    // calls within calls
thread_local const char* outermost = nullptr;  // function of the call under way
thread_local int device_of_call = 0;
thread_local CallFault of_enqueued = CallFault::kNone;  // what the call under way enqueues
thread_local bool has_enqueued = false;                 // the call under way

std::vector<const void*> place_of_call() {
  std::array<void*, kFrames> frames{};
  const int count = backtrace(frames.data(), kFrames);
  return std::vector<const void*>(frames.begin(), frames.begin() + count);
}

bool is_error(CallFault fault) { return fault == CallFault::kError || fault == CallFault::kHang; }

/// Counts the call. True: it is to fail.
bool begin_call(const char* function, int device) {
  std::unique_lock lock(mutex);
  if (the_faults.records_places) {
    // Of another device the number means nothing.
    const bool counts = device == the_faults.device;
    the_faults.places.try_emplace(place_of_call(),
                                  NumberedCall{function, counts ? the_faults.calls[function] : -1});
  }
  if (device != the_faults.device) return false;
  const int64_t number = the_faults.calls[function]++;
  const bool is_it = the_faults.fault != CallFault::kNone && the_faults.function == function &&
                     the_faults.at == number;
  if (!is_it) return false;
  the_faults.has_happened = true;
  if (!is_error(the_faults.fault)) {
    of_enqueued = the_faults.fault;
    return false;
  }
  if (the_faults.fault == CallFault::kHang) {
    ++hanging;
    released.wait(lock, [] { return is_released; });
    --hanging;
    released.notify_all();
  }
  return true;
}

}  // namespace

thread_local int current_device = 0;

cudaError_t error_of(const LibraryCall& call) {
  return call.fails() ? last_error = the_faults.error.value_or(cudaErrorUnknown) : cudaSuccess;
}

void plan_fault(Operation& operation) {
  has_enqueued = true;
  const CallFault fault = std::exchange(of_enqueued, CallFault::kNone);
  if (fault == CallFault::kNeverDone) operation.waits_for = never;
  if (fault == CallFault::kLateError) {
    operation.run = [what = operation.what] {
      refuse(the_faults.error.value_or(cudaErrorLaunchFailure),
             std::string(what) + " fails, as the test asked", true);
    };
  }
}

void note_endless_wait() {
  const std::lock_guard lock(mutex);
  const bool is_endless = the_faults.fault == CallFault::kNeverDone && the_faults.has_happened &&
                          !never->is_done && current_device == the_faults.device;
  if (is_endless && the_faults.waits_forever.empty())
    the_faults.waits_forever = outermost != nullptr ? outermost : "?";
}

}  // namespace detail

CallFaults& call_faults() { return detail::the_faults; }

bool fault_has_happened() {
  const std::lock_guard lock(detail::mutex);
  return detail::the_faults.has_happened;
}

void reset_call_faults() {
  release_call_faults();
  std::unique_lock lock(detail::mutex);
  detail::released.wait(lock, [] { return detail::hanging == 0; });
  detail::the_faults = {};
  detail::is_released = false;
  detail::never = std::make_shared<SimtEvent::Record>();
}

void release_call_faults() {
  const detail::Lock lock(detail::device.mutex);  // which streams are read under
  const std::lock_guard inner(detail::mutex);
  detail::is_released = detail::never->is_done = true;
  detail::released.notify_all();
}

LibraryCall::LibraryCall(const char* function) : LibraryCall(function, detail::current_device) {}
LibraryCall::LibraryCall(const char* function, int device) {
  if (detail::depth++ > 0) return;
  detail::outermost = function;
  detail::device_of_call = device;
  detail::of_enqueued = CallFault::kNone;
  detail::has_enqueued = false;
  fails_ = detail::begin_call(function, device);
}
LibraryCall::~LibraryCall() {
  if (--detail::depth > 0) return;
  detail::of_enqueued = CallFault::kNone;
  if (detail::has_enqueued) {
    const std::lock_guard lock(detail::mutex);
    if (detail::device_of_call == detail::the_faults.device)
      ++detail::the_faults.enqueued[detail::outermost];
  }
  detail::outermost = nullptr;
}

}  // namespace trainyard::simt
