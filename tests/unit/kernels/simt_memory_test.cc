// Host code may not touch the emulated device's memory, which AddressSanitizer sees to.

#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/simt/emulation.h"

// Only a sanitizer has it.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" __attribute__((weak)) void __sanitizer_set_report_fd(void* fd);

namespace trainyard::simt {
namespace {

/// In a process that is to die: its report goes where a death test reads it, whatever log_path
/// says.
void report_to_stderr() {
  if (__sanitizer_set_report_fd != nullptr)
    __sanitizer_set_report_fd(reinterpret_cast<void*>(STDERR_FILENO));
}
void read(const volatile unsigned char* at) {
  report_to_stderr();
  (void)*at;
}
void write(volatile unsigned char* at) {
  report_to_stderr();
  *at = 1;
}

/// Of memory that is allocated in the order of a stream, or not.
class SimtMemoryDeathTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    reset_emulation();
    emulation_options() = {.seed = 1};
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    EXPECT_EQ(cudaSuccess, cudaStreamDestroy(stream_));
    EXPECT_EQ("", emulation_error());
    EXPECT_EQ(0, live_allocations());
    emulation_options() = {};
  }

  cudaStream_t stream_ = nullptr;
};
std::vector<bool> where_memory_is_hidden() {
  if (!hides_device_memory()) return {};
  return {false, true};
}
INSTANTIATE_TEST_SUITE_P(Allocations, SimtMemoryDeathTest,
                         testing::ValuesIn(where_memory_is_hidden()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SimtMemoryDeathTest);

TEST_P(SimtMemoryDeathTest, AHostTouchEndsTheProcess) {
  constexpr size_t kBytes = 64;
  const char* const told = "AddressSanitizer: use-after-poison";
  void* memory = nullptr;
  ASSERT_EQ(cudaSuccess,
            GetParam() ? cudaMallocAsync(&memory, kBytes, stream_) : cudaMalloc(&memory, kBytes));
  auto* const bytes = static_cast<volatile unsigned char*>(memory);
  EXPECT_DEATH(read(bytes), told) << "before an operation";
  // While an operation runs, all memory of the device is open.
  ASSERT_EQ(cudaSuccess, cudaMemsetAsync(memory, 7, kBytes, stream_));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  EXPECT_DEATH(read(bytes), told);
  EXPECT_DEATH(write(bytes + kBytes - 1), told);
  std::vector<unsigned char> copied(kBytes);
  ASSERT_EQ(cudaSuccess,
            cudaMemcpyAsync(copied.data(), memory, kBytes, cudaMemcpyDeviceToHost, stream_));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  EXPECT_EQ(copied, std::vector<unsigned char>(kBytes, 7));
  EXPECT_EQ(cudaSuccess, cudaFreeAsync(memory, stream_));
  EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
}

}  // namespace
}  // namespace trainyard::simt
