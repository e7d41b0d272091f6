#pragma once

// The emulated side of kernels/simt/simt.h: the kernel language as plain C++. The threads of a
// block are fibers, which give way only where CUDA threads wait for each other. What CUDA leaves
// undefined ends the launch with an error that names block, thread, operation and source line.

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/simt/runtime.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
// The bound in warps is the number of nops at the kernel's start, where launches read it. Clang's
// nops are of several bytes.
#if defined(__clang__)
#define __launch_bounds__(...)
#else
#define __launch_bounds__(threads, ...) \
  __attribute__((patchable_function_entry(((threads) + 31) / 32)))
#endif
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
// The emulator's own code within a kernel's object file: its accesses are not the kernel's.
#define SIMT_RAW __attribute__((no_sanitize("thread")))
#define SIMT_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

struct alignas(8) [[gnu::may_alias]] float2 {
  float x, y;
};
struct alignas(16) [[gnu::may_alias]] float4 {
  float x, y, z, w;
};
struct alignas(8) [[gnu::may_alias]] uint2 {
  unsigned x, y;
};
struct alignas(16) [[gnu::may_alias]] uint4 {
  unsigned x, y, z, w;
};
struct uint3 {
  unsigned x, y, z;
};
constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace trainyard::simt {

struct BFloat16 {
  uint16_t bits;
};

namespace detail {

/// A place in a kernel's source.
struct Site {
  const char* file;
  int line;
};
struct Builtins {
  uint3 thread, block;
  dim3 block_size, grid_size;
};
extern Builtins builtins;

/// What the 32 lanes of a warp bring to one warp operation.
struct Meeting {
  const char* kind;
  Site site;
  uint32_t mask = 0, present = 0, left = 0;
  alignas(16) std::byte slots[32][48];
  float product[16][8];  ///< of mma
};
enum class Access : uint8_t { kRead, kWrite, kAtomic };

unsigned lane();
/// Waits until every lane of `mask` that still runs is at this operation. `leave` follows.
Meeting& meet(const char* kind, Site site, uint32_t mask, const void* mine, size_t bytes);
void leave(Meeting& meeting);
/// Ends the launch; `value` is printed where it is not negative.
[[noreturn]] void fail_at(Site site, const char* operation, const char* problem, int value = -1);
void sync_threads(Site site);
void sync_warp(uint32_t mask, Site site);
void* dynamic_shared_bytes();
/// Tells the race checker, where there is one, of an access that no compiler has instrumented.
void touch(const void* address, size_t bytes, Access access, const void* pc);
void enter_kernel(bool is_inside);
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site);
void load_matrices(uint32_t (&r)[4], const void* row, bool transpose, Site site);
void copy_later(void* shared, const void* global, uint32_t read, Site site);
void commit_copies();
void wait_for_copies(uint32_t pending);
cudaError_t enqueue_launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                           cudaStream_t stream, std::function<void()> body);

template <typename T>
SIMT_RAW T slot(const Meeting& meeting, unsigned lane) {
  T value;
  std::memcpy(&value, meeting.slots[lane], sizeof(T));
  return value;
}

template <typename T, typename Source>
SIMT_RAW T shuffle(const char* kind, Site site, uint32_t mask, T value, int width,
                   const Source& source) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  if (width < 1 || width > 32 || !std::has_single_bit(static_cast<unsigned>(width))) {
    fail_at(site, kind, "has a width that is not a power of two up to 32:", width);
  }
  Meeting& meeting = meet(kind, site, mask, &value, sizeof value);
  const auto from = static_cast<unsigned>(source(static_cast<int>(lane())));
  if ((meeting.present >> from & 1U) == 0) {
    fail_at(site, kind, "reads a lane that does not take part:", static_cast<int>(from));
  }
  const T result = slot<T>(meeting, from);
  leave(meeting);
  return result;
}

template <typename T, typename Change>
SIMT_RAW T atomic(T* address, const Change& change) {
  if (reinterpret_cast<uintptr_t>(address) % sizeof(T) != 0) {
    fail_at({"", 0}, "atomic", "of a misaligned address");
  }
  touch(address, sizeof(T), Access::kAtomic, __builtin_return_address(0));
  const T old = *address;
  *address = change(old);
  return old;
}

}  // namespace detail

inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16U);
}
/// Nearest even; NaN is 0x7fff, as the device has it.
inline BFloat16 to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U)};
}
inline uint32_t pack_bf16(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16U;
}

namespace detail {

/// A result of an instruction that CUDA documents by its error: `exact`, off by up to `error`
/// (relative) as a hash of `x` says, so that no test relies on a better one. Below the normal
/// numbers: 0.
inline float approximate(double exact, float x, double error) {
  const uint32_t hash = std::bit_cast<uint32_t>(x) * 2654435769U;
  const double share = static_cast<double>(static_cast<int32_t>(hash ^ hash >> 15U)) * 0x1p-31;
  const auto y = static_cast<float>(exact * (1 + error * share));
  return std::fabs(y) < 0x1p-126F ? std::copysign(0.0F, y) : y;
}

}  // namespace detail

inline float exp2_approx(float x) {
  if (!(std::fabs(x) >= 0x1p-126F) || std::isinf(x)) return std::exp2(x);
  return detail::approximate(std::exp2(static_cast<double>(x)), x, 0x1p-22);
}
inline float reciprocal_approx(float x) {
  if (std::fabs(x) < 0x1p-126F) return std::copysign(INFINITY, x);
  return detail::approximate(1 / static_cast<double>(x), x, 0x1p-23);
}

inline void store_16(void* global, uint4 v, SIMT_HERE) {
  if (reinterpret_cast<uintptr_t>(global) % sizeof v != 0) {
    detail::fail_at({file, line}, "store_16", "to a misaligned address");
  }
  *static_cast<uint4*>(global) = v;
}

template <typename... P, typename... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, A&&... arguments) {
  static_assert((std::is_trivially_copyable_v<P> && ...), "kernel parameters are copied as bytes");
  return detail::enqueue_launch(
      reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream,
      [kernel, parameters = std::tuple<P...>(std::forward<A>(arguments)...)]() SIMT_RAW {
        std::apply(
            [kernel](const auto&... p) SIMT_RAW {
              detail::enter_kernel(true);
              kernel(p...);
              detail::enter_kernel(false);
            },
            parameters);
      });
}

template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(detail::dynamic_shared_bytes());
}

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, SIMT_HERE) {
  detail::mma(d, a, b0, b1, {file, line});
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, SIMT_HERE) {
  detail::load_matrices(r, row, false, {file, line});
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, SIMT_HERE) {
  detail::load_matrices(r, row, true, {file, line});
}
inline void cp_async_16(void* shared, const void* global, int bytes = 16, SIMT_HERE) {
  detail::copy_later(shared, global, static_cast<uint32_t>(bytes), {file, line});
}
inline void cp_async_commit() { detail::commit_copies(); }
template <int kPending>
void cp_async_wait() {
  detail::wait_for_copies(kPending);
}

}  // namespace trainyard::simt

inline const uint3& threadIdx = trainyard::simt::detail::builtins.thread;
inline const uint3& blockIdx = trainyard::simt::detail::builtins.block;
inline const dim3& blockDim = trainyard::simt::detail::builtins.block_size;
inline const dim3& gridDim = trainyard::simt::detail::builtins.grid_size;

inline void __syncthreads(SIMT_HERE) { trainyard::simt::detail::sync_threads({file, line}); }
inline void __syncwarp(unsigned mask = ~0U, SIMT_HERE) {
  trainyard::simt::detail::sync_warp(mask, {file, line});
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, SIMT_HERE) {
  return trainyard::simt::detail::shuffle(
      "__shfl_sync", {file, line}, mask, value, width,
      [=](int lane) { return (lane & ~(width - 1)) | (source & (width - 1)); });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32, SIMT_HERE) {
  return trainyard::simt::detail::shuffle("__shfl_xor_sync", {file, line}, mask, value, width,
                                          [=](int lane) {
                                            const int from = lane ^ flip;
                                            return from > (lane | (width - 1)) ? lane : from;
                                          });
}
inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_HERE) {
  using namespace trainyard::simt::detail;
  const unsigned mine = predicate != 0 ? 1U : 0U;
  Meeting& meeting = meet("__ballot_sync", {file, line}, mask, &mine, sizeof mine);
  unsigned votes = 0;
  for (unsigned i = 0; i < 32; ++i) {
    if ((meeting.present >> i & 1U) != 0) votes |= slot<unsigned>(meeting, i) << i;
  }
  leave(meeting);
  return votes;
}
inline int __any_sync(unsigned mask, int predicate, SIMT_HERE) {
  return __ballot_sync(mask, predicate, file, line) != 0 ? 1 : 0;
}

// The types that the device has: 64-bit integers are unsigned long long there.
inline float atomicAdd(float* address, float value) {
  return trainyard::simt::detail::atomic(address, [=](float old) { return old + value; });
}
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  return trainyard::simt::detail::atomic(
      address, [=](unsigned long long old) SIMT_RAW { return old + value; });
}
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return trainyard::simt::detail::atomic(address, [=](unsigned old) { return old + value; });
}
inline unsigned atomicOr(unsigned* address, unsigned value) {
  return trainyard::simt::detail::atomic(address, [=](unsigned old) { return old | value; });
}

inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
/// As the device: saturates, and NaN is the most negative value.
inline long long __float2ll_rn(float x) {
  if (!(x >= -0x1p63F)) return INT64_MIN;
  return x >= 0x1p63F ? INT64_MAX : std::llrint(x);
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<uint64_t>(x) * y >> 32U);
}
template <typename T>
requires std::is_arithmetic_v<T>
constexpr T min(T a, T b) { return b < a ? b : a; }
template <typename T>
requires std::is_arithmetic_v<T>
constexpr T max(T a, T b) { return a < b ? b : a; }
