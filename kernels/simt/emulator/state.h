#pragma once

// What the parts of the emulator share: block.cc (fibers and barriers), warp.cc (warp operations),
// stream.cc (streams, events, graphs), memory.cc (device memory) and race.cc (the race checker).

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <boost/context/detail/fcontext.hpp>

#include "kernels/simt/emulation.h"
#include "kernels/simt/host.h"

#if !defined(__SANITIZE_ADDRESS__) && defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SIMT_ASAN 1
#else
#define SIMT_ASAN 0
#endif

/// Begins a function of CUDA's runtime, which a test may let fail.
#define SIMT_CALL(function)                                                                      \
  const ::trainyard::simt::LibraryCall call(#function);                                          \
  if (const cudaError_t fault = ::trainyard::simt::detail::error_of(call); fault != cudaSuccess) \
  return fault

namespace trainyard::simt::detail {

inline constexpr unsigned char kPoison = 0xff;  ///< new memory: a NaN in fp32 and in bf16

/// How far each stream had come, by stream number: a vector clock.
using Clock = std::vector<uint32_t>;
void join(Clock& into, const Clock& other);

/// Sees what the emulator does. At most one, registered by static initialisation: the race checker.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void operation_begins(const char* what, uint32_t stream, const Clock& clock) = 0;
  virtual void block_begins(const void* shared, size_t shared_bytes, uint32_t threads) = 0;
  virtual void threads_synced() = 0;
  virtual void warp_synced(uint32_t warp, uint32_t lanes) = 0;
  virtual void access(const void* address, size_t bytes, Access access, const void* pc) = 0;
  /// A background copy to `shared` begins or arrives.
  virtual void copy_is_pending(const void* shared, size_t bytes, bool is_pending) = 0;
  virtual void allocated(const void* address, size_t bytes) = 0;
  virtual void freed(const void* address, size_t bytes) = 0;
  /// Nothing that was done to this memory has an order with what comes: all of it is over.
  virtual void forgotten(const void* address, size_t bytes) = 0;
};
extern Observer* observer;

struct Copy {
  void* to;
  const void* from;
  uint32_t read, group;
  const void* pc;
};

struct Fiber {
  boost::context::detail::fcontext_t context = nullptr;
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;
  uint32_t id = 0;
  uint3 thread{};
  const char* waits_for = nullptr;
  Site site{};
  bool is_inside = false;  ///< in the kernel's own code, not the emulator's
  std::vector<Copy> copies;
  uint32_t copy_group = 0;
};

struct Warp {
  uint32_t alive = 0;
  std::vector<Meeting*> open;
};

constexpr uint32_t kThreadsMax = 1024;  // of a block

struct Device {
  std::recursive_mutex mutex;
  std::mt19937_64 random;
  uint64_t seeded_with = 0;
  std::string error_text;
  cudaError_t sticky = cudaSuccess;

  // The block that runs.
  Fiber main;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::byte* stacks = nullptr;
  Fiber* current = nullptr;
  const std::function<void()>* body = nullptr;
  std::vector<Fiber*> ready;
  size_t ready_first = 0;
  uint32_t threads = 0, alive = 0;
  std::vector<Fiber*> at_barrier;
  Site barrier{};
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<Meeting>> meetings;
  std::vector<Meeting*> free_meetings;
  std::byte* shared = nullptr;
  size_t shared_bytes = 0;
  const void* kernel = nullptr;
  bool has_failed = false;

  std::map<uintptr_t, size_t> allocations;
  std::map<uintptr_t, size_t> host_allocations;
  /// Freed while addresses were not reused.
  std::vector<std::unique_ptr<void, decltype(&std::free)>> retired;
};
extern Device device;
/// CUDA keeps it by thread of the host.
extern thread_local cudaError_t last_error;
using Lock = std::lock_guard<std::recursive_mutex>;

bool is_random();
/// A number below `count`, from the seed.
size_t draw(size_t count);
cudaError_t refuse(cudaError_t error, const std::string& text, bool is_sticky = false);

// block.cc
extern EmulationCounters counters;
void run_grid(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
              const std::function<void()>& body);
bool is_in_kernel();
/// Suspends the running fiber until `wake`.
void wait_here(const char* what, Site site);
void wake(Fiber& fiber);
/// Lets others go first, where the seed is not 0.
void give_way();
/// Ends the launch with an error. No string may be alive on a fiber that is abandoned.
[[noreturn]] void abandon_block();
void note_failure(const std::string& text);
std::string where();
/// "function file:line" of a return address.
std::string line_of(const void* pc);
/// warp.cc: a lane has returned, so that operations that waited for it may be complete.
void complete_meetings_without(uint32_t warp);
void carry_out(const Copy& copy);
/// stream.cc: one more operation of a stream, or of the graph that it captures.
cudaError_t enqueue(cudaStream_t stream, const char* what, std::function<void()> run);
/// faults.cc: the GPU of the calling thread.
extern thread_local int current_device;
/// An error where the calling function, of CUDA's runtime, is to fail.
cudaError_t error_of(const LibraryCall& call);
/// graph.cc: an error where a capture forbids the calling thread what waits for the device or
/// allocates; the capture is broken then.
cudaError_t refuse_in_capture(const char* what);
/// memory.cc: under AddressSanitizer the host may not touch device memory but in an operation.
void hide_memory(bool is_hidden);

/// While one lives, what the running fiber does is the emulator's doing, not the kernel's.
class Outside {
 public:
  Outside() : was_inside_(device.current != nullptr && device.current->is_inside) {
    if (was_inside_) device.current->is_inside = false;
  }
  ~Outside() {
    if (was_inside_) device.current->is_inside = true;
  }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

 private:
  bool was_inside_;
};

}  // namespace trainyard::simt::detail
