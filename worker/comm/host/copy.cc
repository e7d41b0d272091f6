#include "worker/comm/host/copy.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace trainyard::comm {

void copy_past_caches(std::byte* to, const std::byte* from, int64_t bytes) {
#if defined(__SSE2__)
  constexpr int64_t kLine = 64;
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine);
  const int64_t head = std::min(bytes, (kLine - misaligned) % kLine);
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    // Four stores that fill a line, which the processor then writes as a whole.
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* line = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
  // These stores are not ordered with those that later say that the data is there.
  _mm_sfence();
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

}  // namespace trainyard::comm
