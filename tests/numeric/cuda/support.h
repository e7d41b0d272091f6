#pragma once

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/ops.h"
#include "kernels/simt/runtime.h"
#include "tests/numeric/kernels/support.h"
#include "tests/support/extent.h"
#if !defined(TRAINYARD_DEVICE_BUILD)
#include "kernels/simt/emulation.h"
#endif

namespace trainyard::kernels::cuda::test {

using kernels::test::doubles;
using kernels::test::near;
using kernels::test::normal;
using kernels::test::sequences_of;
using kernels::test::Tensor;
using kernels::test::within;
using reference::Vector;

/// Half a unit in the last place of bf16, relative; 0 for fp32.
inline double rounding_of(DType type) { return type == DType::kFloat32 ? 0 : std::ldexp(1.0, -8); }

/// Seeds of the emulation: one, two under AddressSanitizer, of which 0 runs everything in order,
/// and four with TRAINYARD_LONG_TESTS=1. A device has one, and so has the race checker, which finds
/// what nothing orders in whatever order it ran.
inline std::vector<uint64_t> seeds() {
#if defined(TRAINYARD_DEVICE_BUILD)
  return {0};
#else
  const char* const is_long = std::getenv("TRAINYARD_LONG_TESTS");  // NOLINT(concurrency-mt-unsafe)
  if (is_long != nullptr && std::string(is_long) == "1" && !simt::has_race_checker())
    return {0, 1, 2, 3};
  if (testing_support::kSanitized) return {0, 1};
  return {1};
#endif
}

/// With TRAINYARD_CUDA_RECORD=FILE each result that a test reads is one line of the file: the test
/// without its seed, an ordinal, a hash of the bytes. tools/gpu_check compares those of a device
/// with the emulation's.
class Record {
 public:
  void add(const void* data, size_t bytes) {
    const char* const path = std::getenv("TRAINYARD_CUDA_RECORD");  // NOLINT(concurrency-mt-unsafe)
    if (path == nullptr) return;
    uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
    for (size_t i = 0; i < bytes; ++i)
      hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3U;
    const auto* const info = testing::UnitTest::GetInstance()->current_test_info();
    const std::string name = std::string(info->test_suite_name()) + "." + info->name();
    std::ofstream(path, std::ios::app)
        << name.substr(0, name.rfind('/')) << ' ' << ordinal_++ << ' ' << hash << '\n';
  }

 private:
  int ordinal_ = 0;
};

/// A stream, and device memory that lives as long as the test. Ends with no error of the emulation.
class CudaTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
#if !defined(TRAINYARD_DEVICE_BUILD)
    simt::reset_emulation();
    simt::emulation_options() = {.seed = GetParam()};
#endif
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    for (void* const memory : memory_)
      EXPECT_EQ(cudaSuccess, cudaFreeAsync(memory, stream_));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
    EXPECT_EQ(cudaSuccess, cudaStreamDestroy(stream_));
#if !defined(TRAINYARD_DEVICE_BUILD)
    EXPECT_EQ("", simt::emulation_error());
    EXPECT_EQ(0, simt::live_allocations());
#endif
  }

  template <typename T>
  T* allocate(int64_t count) {
    void* memory = nullptr;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    EXPECT_EQ(cudaSuccess, cudaMallocAsync(&memory, bytes, stream_));
    memory_.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <typename T>
  T* upload(const std::vector<T>& values) {
    T* const memory = allocate<T>(static_cast<int64_t>(values.size()));
    EXPECT_EQ(cudaSuccess, cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(T),
                                           cudaMemcpyHostToDevice, stream_));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));  // `values` may be a temporary
    return memory;
  }
  void* upload(const Tensor& tensor) {
    if (tensor.type == DType::kFloat32) return upload(tensor.f32);
    return upload(tensor.bf16);
  }
  DeviceRows upload(const std::vector<Sequence>& sequences) {
    std::vector<int32_t> sequence_of;
    int64_t longest = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      sequence_of.insert(sequence_of.end(), static_cast<size_t>(sequences[i].length),
                         static_cast<int32_t>(i));
      longest = std::max(longest, sequences[i].length);
    }
    return {.count = std::ssize(sequence_of),
            .sequences = upload<Sequence>(sequences),
            .sequences_count = std::ssize(sequences),
            .longest = longest,
            .sequence_of = upload(sequence_of)};
  }
  /// Memory for a result, of `type`.
  void* allocate(DType type, int64_t count) { return allocate<std::byte>(count * size_of(type)); }

  template <typename T>
  std::vector<T> download(const T* memory, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    EXPECT_EQ(cudaSuccess, cudaMemcpyAsync(values.data(), memory, values.size() * sizeof(T),
                                           cudaMemcpyDeviceToHost, stream_));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
    record_.add(values.data(), values.size() * sizeof(T));
    return values;
  }
  Tensor download(const void* memory, DType type, int64_t count) {
    Tensor tensor(type, 0);
    if (type == DType::kFloat32) {
      tensor.f32 = download(static_cast<const float*>(memory), count);
    } else {
      tensor.bf16 = download(static_cast<const uint16_t*>(memory), count);
    }
    return tensor;
  }

  cudaStream_t stream_ = nullptr;

 private:
  std::vector<void*> memory_;
  Record record_;
};

inline Vector operator+(Vector a, const Vector& b) {
  for (size_t i = 0; i < a.size(); ++i)
    a[i] += b[i % b.size()];  // a row is added to every row
  return a;
}

inline std::string name_of_seed(const testing::TestParamInfo<uint64_t>& info) {
  return "Seed" + std::to_string(info.param);
}
#define TRAINYARD_CUDA_TEST_SUITE(suite) \
  INSTANTIATE_TEST_SUITE_P(Seeds, suite, testing::ValuesIn(seeds()), name_of_seed)

}  // namespace trainyard::kernels::cuda::test
