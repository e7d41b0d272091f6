#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/simt/emulation.h"
#include "kernels/simt/host.h"
#include "tests/unit/kernels/simt_kernels.h"

namespace trainyard::simt {
namespace {

using test::Arguments;
using test::Launch;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kCount = 64;
constexpr size_t kBytes = kCount * sizeof(float);

class SimtTest : public testing::Test {
 protected:
  void SetUp() override {
    reset_emulation();
    emulation_options() = {.print_errors = false};
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    reset_emulation();
    cudaFreeAsync(arguments_.in, stream_);
    cudaFreeAsync(arguments_.out, stream_);
    cudaStreamDestroy(stream_);
    cudaStreamDestroy(other_);
    reset_emulation();
    EXPECT_EQ(0, live_allocations());
  }

  /// in = 0, 1, 2, ...; out = 0.
  void allocate() {
    cudaMallocAsync(reinterpret_cast<void**>(&arguments_.in), kBytes, stream_);
    cudaMallocAsync(reinterpret_cast<void**>(&arguments_.out), kBytes, stream_);
    for (int i = 0; i < kCount; ++i)
      values_.push_back(static_cast<float>(i));
    cudaMemcpyAsync(arguments_.in, values_.data(), kBytes, cudaMemcpyHostToDevice, stream_);
    cudaMemsetAsync(arguments_.out, 0, kBytes, stream_);
    cudaStreamSynchronize(stream_);
  }
  /// What `launch` makes of it, under a seed.
  std::vector<float> run(Launch launch, uint64_t seed) {
    emulation_options().seed = seed;
    if (arguments_.in == nullptr) allocate();
    launch(arguments_, stream_);
    cudaStreamSynchronize(stream_);
    return download();
  }
  std::vector<float> download() {
    std::vector<float> out(kCount);
    cudaMemcpyAsync(out.data(), arguments_.out, kBytes, cudaMemcpyDeviceToHost, stream_);
    cudaStreamSynchronize(stream_);
    return out;
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
  Arguments arguments_;
  std::vector<float> values_;
};

struct Mistake {
  const char* name;
  Launch launch;
  const char* message;
  bool only_race_checker;
};
class SimtMistakeTest : public SimtTest, public testing::WithParamInterface<Mistake> {};

TEST_P(SimtMistakeTest, EndsTheLaunchWithItsPlace) {
  std::string text;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    reset_emulation();
    run(GetParam().launch, seed);
    text = emulation_error();
    ASSERT_THAT(text, HasSubstr(GetParam().message)) << "seed " << seed;
    EXPECT_NE(cudaSuccess, cudaGetLastError());
  }
}

/// Those that this build can see: some need the race checker.
std::vector<Mistake> mistakes() {
  std::vector<Mistake> all = {
      Mistake{"ReverseWithoutBarrier", test::reverse_without_barrier, "static shared memory", true},
      Mistake{"ReverseByWarpBarrier", test::reverse_by_warp_barrier, "static shared memory", true},
      Mistake{"BarrierInABranch", test::barrier_in_a_branch, "__syncthreads", false},
      Mistake{"TwoBarriersForOne", test::two_barriers_for_one,
              "while other threads wait at another __syncthreads", false},
      Mistake{"ReturnBeforeBarrier", test::return_before_barrier, "return", false},
      Mistake{"OverwriteWithoutBarrier", test::overwrite_without_barrier, "is not ordered behind a",
              true},
      Mistake{"BeyondSharedMemory", test::beyond_shared_memory,
              "neither shared nor allocated device memory", true},
      Mistake{"BeyondTheTensor", test::beyond_the_tensor,
              "neither shared nor allocated device memory", true},
      Mistake{"UnwrittenSharedMemory", test::unwritten_shared_memory, "was written by nobody",
              true},
      Mistake{"ShuffleWithHalfTheMask", test::shuffle_with_half_the_mask,
              "by a lane that its mask leaves out", false},
      Mistake{"ShuffleOfWidth3", test::shuffle_of_width_3, "not a power of two up to 32: 3", false},
      Mistake{"ShuffleInABranch", test::shuffle_in_a_branch,
              "reads a lane that does not take part: 1", false},
      Mistake{"PlainSum", test::plain_sum, "of another block", true},
      Mistake{"CopyNotWaitedFor", test::background_copy_not_waited_for, "cp.async", false},
      Mistake{"CopyOfAGroupTooFew", test::background_copy_of_a_group_too_few, "pending cp.async",
              true},
      Mistake{"CopyWithoutBarrier", test::background_copy_without_barrier, "shared memory", true},
      Mistake{"CopyMisaligned", test::background_copy_misaligned, "misaligned address", false},
      Mistake{"WideStoreMisaligned", test::wide_store_misaligned,
              "store_16 to a misaligned address", false},
      Mistake{"ProductLackingALane", test::matrix_product_lacking_a_lane, "mma lacks a lane",
              false},
      Mistake{"LdmatrixMisaligned", test::ldmatrix_misaligned, "of a misaligned row", false},
      Mistake{"TooManyThreads", test::too_many_threads, "outside what a device runs", false},
      Mistake{"TooMuchSharedMemory", test::too_much_shared_memory, "at most 232448", false}};
#if !defined(__clang__)
  all.push_back({"BeyondItsBounds", test::beyond_its_bounds,
                 "65 threads, at most 64 by its __launch_bounds__", false});
#endif
  if (!has_race_checker()) std::erase_if(all, [](const Mistake& m) { return m.only_race_checker; });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kernels, SimtMistakeTest, testing::ValuesIn(mistakes()),
                         [](const auto& mistake) { return mistake.param.name; });

TEST_F(SimtTest, NamesBlockThreadAndLine) {
  run(test::shuffle_of_width_3, 0);
  EXPECT_THAT(emulation_error(), HasSubstr("block (0,0,0), thread (0,0,0): __shfl_xor_sync"));
  EXPECT_THAT(emulation_error(), HasSubstr("simt_kernels.cc:"));
  EXPECT_THAT(emulation_error(), HasSubstr("[kernel "));
}

TEST_F(SimtTest, AnErrorStaysUntilReset) {
  run(test::barrier_in_a_branch, 0);
  EXPECT_EQ(cudaErrorLaunchFailure, test::reverse(arguments_, stream_));
  EXPECT_EQ(cudaErrorLaunchFailure, cudaStreamSynchronize(stream_));
  reset_emulation();
  EXPECT_EQ(63.0F, run(test::reverse, 0)[0]);
}

// Streams: what only an event orders goes wrong under some seed without it.

TEST_F(SimtTest, AnEventOrdersTwoStreams) {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  for (uint64_t seed = 1; seed < 20; ++seed) {
    emulation_options().seed = seed;
    if (arguments_.in == nullptr) allocate();
    test::increment(arguments_, stream_);
    cudaEventRecord(event, stream_);
    cudaStreamWaitEvent(other_, event);
    test::increment({arguments_.out, arguments_.in}, other_);
    cudaStreamSynchronize(other_);
    cudaMemcpyAsync(values_.data(), arguments_.in, kBytes, cudaMemcpyDeviceToHost, other_);
    cudaStreamSynchronize(other_);
    EXPECT_EQ(static_cast<float>(2 * seed), values_[0]);
    EXPECT_THAT(emulation_error(), IsEmpty());
  }
  cudaEventDestroy(event);
}

TEST_F(SimtTest, AForgottenEventShows) {
  allocate();
  int wrong = 0;
  for (uint64_t seed = 1; seed < 20; ++seed) {
    reset_emulation();
    emulation_options().seed = seed;
    cudaMemsetAsync(arguments_.out, 0, kBytes, stream_);
    cudaStreamSynchronize(stream_);
    test::increment(arguments_, stream_);
    test::increment({arguments_.out, arguments_.in}, other_);
    cudaDeviceSynchronize();
    if (!emulation_error().empty()) {
      EXPECT_THAT(emulation_error(), HasSubstr("of a kernel on stream"));
      ++wrong;
      continue;
    }
    float first = 0;
    cudaMemcpyAsync(&first, arguments_.in, sizeof first, cudaMemcpyDeviceToHost, other_);
    cudaStreamSynchronize(other_);
    wrong += first == 1.0F ? 1 : 0;
    cudaMemcpyAsync(arguments_.in, values_.data(), kBytes, cudaMemcpyHostToDevice, other_);
    cudaStreamSynchronize(other_);
  }
  EXPECT_GT(wrong, has_race_checker() ? 18 : 3);
}

/// As CUDA does: whoever polls asks for it, so that the next call is not blamed.
TEST_F(SimtTest, APollLeavesItsAnswerBehind) {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  const auto gate = make_gate();
  ASSERT_EQ(cudaSuccess, enqueue_work(
                             stream_, "the test", [] {}, gate));
  ASSERT_EQ(cudaSuccess, cudaEventRecord(event, stream_));
  EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream_));
  EXPECT_EQ(cudaErrorNotReady, cudaGetLastError());
  EXPECT_EQ(cudaErrorNotReady, cudaEventQuery(event));
  EXPECT_EQ(cudaErrorNotReady, cudaGetLastError());
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
  EXPECT_EQ("", emulation_error()) << "it is no error of the program";
  open_gate(*gate);
  EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  cudaEventDestroy(event);
}

TEST_F(SimtTest, ABlockMayHaveAsManyThreadsAsItsBounds) {
  EXPECT_EQ(64.0F, run(test::bounded, 0)[63]);
  EXPECT_THAT(emulation_error(), IsEmpty());
}

TEST_F(SimtTest, TheDefaultStreamIsRefused) {
  EXPECT_EQ(cudaErrorInvalidResourceHandle, test::reverse({}, nullptr));
  EXPECT_THAT(emulation_error(), HasSubstr("legacy default stream"));
}

// Memory.

TEST_F(SimtTest, NewMemoryIsNaN) {
  cudaMallocAsync(reinterpret_cast<void**>(&arguments_.out), kBytes, stream_);
  EXPECT_TRUE(std::isnan(download()[0]));
}

TEST_F(SimtTest, AWriteOutsideAnAllocationIsFoundWhenItIsFreed) {
  if (has_race_checker()) GTEST_SKIP() << "found earlier, by the race checker";
#if defined(__SANITIZE_ADDRESS__) || defined(__clang__)
  GTEST_SKIP() << "found earlier, by AddressSanitizer";
#endif
  run(test::beyond_the_tensor, 0);
  EXPECT_THAT(emulation_error(), IsEmpty());
  cudaFreeAsync(arguments_.out, stream_);
  arguments_.out = nullptr;
  EXPECT_EQ(cudaErrorIllegalAddress, cudaStreamSynchronize(stream_));
  EXPECT_THAT(emulation_error(), HasSubstr("256 bytes was written outside its bounds"));
}

TEST_F(SimtTest, AFailingAllocationLeavesThePointerNull) {
  emulation_options().fail_allocation = 1;
  EXPECT_EQ(cudaSuccess,
            cudaMallocAsync(reinterpret_cast<void**>(&arguments_.in), kBytes, stream_));
  EXPECT_EQ(cudaErrorMemoryAllocation,
            cudaMallocAsync(reinterpret_cast<void**>(&arguments_.out), kBytes, stream_));
  EXPECT_EQ(nullptr, arguments_.out);
  EXPECT_EQ(cudaErrorMemoryAllocation, cudaGetLastError());
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
}

TEST_F(SimtTest, AnAddressThatWasFreedIsNotAllocatedAgainWhereATestAsksForThat) {
  emulation_options().reuses_addresses = false;
  std::set<void*> seen;
  for (int i = 0; i < 3; ++i) {
    void* memory = nullptr;
    EXPECT_EQ(cudaSuccess, cudaMalloc(&memory, kBytes));
    EXPECT_TRUE(seen.insert(memory).second);
    EXPECT_EQ(cudaSuccess, cudaFree(memory));
  }
}

TEST_F(SimtTest, FreeingTwiceIsAnError) {
  allocate();
  cudaFreeAsync(arguments_.in, stream_);
  cudaFreeAsync(std::exchange(arguments_.in, nullptr), stream_);
  EXPECT_EQ(cudaErrorInvalidValue, cudaStreamSynchronize(stream_));
  EXPECT_THAT(emulation_error(), HasSubstr("not allocated"));
}

// Graphs.

TEST_F(SimtTest, AGraphRepeatsWhatTwoStreamsCaptured) {
  allocate();
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  test::increment(arguments_, stream_);
  cudaEventRecord(event, stream_);
  cudaStreamWaitEvent(other_, event);
  test::increment({arguments_.out, arguments_.in}, other_);
  cudaEventRecord(event, other_);
  cudaStreamWaitEvent(stream_, event);
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(stream_, &graph));
  ASSERT_EQ(cudaSuccess, cudaGraphInstantiate(&executable, graph));
  EXPECT_EQ(0.0F, download()[1]) << "captured work does not run";
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(cudaSuccess, cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(1.0F + 2 * 2 + 1, download()[1]);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaEventDestroy(event);
}

TEST_F(SimtTest, EveryLaunchOfAGraphRecordsItsExternalEvents) {
  allocate();
  cudaEvent_t events[2] = {};
  for (cudaEvent_t& event : events)
    cudaEventCreateWithFlags(&event, 0);
  const auto record = [&](cudaEvent_t event) {
    return cudaEventRecordWithFlags(event, stream_, cudaEventRecordExternal);
  };
  EXPECT_EQ(cudaErrorInvalidValue, record(events[0])) << "outside a capture";
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(cudaSuccess, record(events[0]));
  test::increment(arguments_, stream_);
  EXPECT_EQ(cudaSuccess, record(events[1]));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(stream_, &graph));
  ASSERT_EQ(cudaSuccess, cudaGraphInstantiate(&executable, graph));
  float ms = 0;
  EXPECT_EQ(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, events[0], events[1]));
  cudaEvent_t between = nullptr;
  cudaEventCreateWithFlags(&between, 0);
  for (int launch = 0; launch < 2; ++launch) {
    EXPECT_EQ(cudaSuccess, cudaGraphLaunch(executable, stream_));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
    EXPECT_EQ(cudaSuccess, cudaEventElapsedTime(&ms, events[0], events[1]));
    EXPECT_GT(ms, 0.0F);
    if (launch > 0) {
      EXPECT_EQ(cudaSuccess, cudaEventElapsedTime(&ms, between, events[0]));
      EXPECT_GE(ms, 0.0F);
    }
    EXPECT_EQ(cudaSuccess, cudaEventRecord(between, stream_));
  }
  EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  for (cudaEvent_t event : {events[0], events[1], between})
    cudaEventDestroy(event);
}

TEST_F(SimtTest, ACaptureDoesNotWaitForUncapturedWork) {
  allocate();
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, other_);
  cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(stream_, event));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream_, &graph));
  EXPECT_EQ(nullptr, graph);
  cudaEventDestroy(event);
}

TEST_F(SimtTest, ACaptureEndsAfterTheStreamsThatItForkedTo) {
  allocate();
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  for (const bool is_early : {false, true}) {
    cudaGraph_t graph = nullptr;
    cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(event, stream_);
    cudaStreamWaitEvent(other_, event);
    if (is_early) {  // joined, and then goes on
      cudaEventRecord(event, other_);
      cudaStreamWaitEvent(stream_, event);
    }
    test::increment(arguments_, other_);
    EXPECT_EQ(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(stream_, &graph));
    EXPECT_EQ(nullptr, graph);
  }
  EXPECT_THAT(emulation_error(), HasSubstr("forked"));
  cudaEventDestroy(event);
}

/// Each of them breaks the capture, of which nothing is left but its end.
TEST_F(SimtTest, WhatACaptureMayNotDoIsRefusedAndBreaksIt) {
  allocate();
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, 0);
  void* memory = nullptr;
  float ms = 0;
  const std::vector<std::pair<cudaError_t, std::function<cudaError_t()>>> calls = {
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(stream_); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream_); }},
      {cudaErrorStreamCaptureUnsupported, [] { return cudaDeviceSynchronize(); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&memory, 8); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaMallocHost(&memory, 8); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaFree(arguments_.in); }},
      {cudaErrorStreamCaptureUnsupported,
       [&] { return cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal); }},
      {cudaErrorCapturedEvent, [&] { return cudaEventQuery(event); }},
      {cudaErrorCapturedEvent, [&] { return cudaEventSynchronize(event); }},
      {cudaErrorCapturedEvent, [&] { return cudaEventElapsedTime(&ms, event, event); }}};
  for (size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    test::increment(arguments_, stream_);
    ASSERT_EQ(cudaSuccess, cudaEventRecord(event, stream_));
    EXPECT_EQ(calls[i].first, calls[i].second());
    EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamQuery(stream_));
    EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(arguments_.out, 0, 4, stream_));
    EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaEventRecord(event, stream_));
    EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamWaitEvent(other_, event));
    EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream_, &graph));
    EXPECT_EQ(nullptr, graph);
  }
  EXPECT_EQ(0.0F, download()[1]) << "the stream works again, and nothing captured has run";
  // An event of a capture that has ended.
  EXPECT_EQ(cudaErrorCapturedEvent, cudaEventQuery(event));
  EXPECT_EQ(cudaErrorCapturedEvent, cudaStreamWaitEvent(other_, event));
  cudaEventRecord(event, stream_);
  EXPECT_EQ(cudaSuccess, cudaEventSynchronize(event)) << "recorded anew";
  cudaEventDestroy(event);
}

/// What other threads may do meanwhile depends on the mode.
TEST_F(SimtTest, AGlobalCaptureForbidsAllThreadsToAllocate) {
  allocate();
  struct Case {
    cudaStreamCaptureMode mode;
    cudaError_t own, others;
  };
  for (const Case& c :
       {Case{cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported,
             cudaErrorStreamCaptureUnsupported},
        Case{cudaStreamCaptureModeThreadLocal, cudaErrorStreamCaptureUnsupported, cudaSuccess},
        Case{cudaStreamCaptureModeRelaxed, cudaSuccess, cudaSuccess}}) {
    for (const bool by_other : {false, true}) {
      SCOPED_TRACE(std::to_string(c.mode) + (by_other ? " other" : " own"));
      ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream_, c.mode));
      cudaError_t error = cudaSuccess;
      const auto use_memory = [&] {
        void* memory = nullptr;
        error = cudaMalloc(&memory, 8);
        if (error == cudaSuccess) error = cudaFree(memory);
      };
      if (by_other) {
        std::thread(use_memory).join();
      } else {
        use_memory();
      }
      EXPECT_EQ(by_other ? c.others : c.own, error);
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(error == cudaSuccess ? cudaSuccess : cudaErrorStreamCaptureInvalidated,
                cudaStreamEndCapture(stream_, &graph));
      cudaGraphDestroy(graph);
    }
  }
}

TEST_F(SimtTest, ACaptureIsEndedByTheThreadThatBeganIt) {
  allocate();
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    const bool is_relaxed = mode == cudaStreamCaptureModeRelaxed;
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream_, mode));
    cudaError_t error = cudaSuccess;
    std::thread([&] { error = cudaStreamEndCapture(stream_, &graph); }).join();
    EXPECT_EQ(is_relaxed ? cudaSuccess : cudaErrorStreamCaptureWrongThread, error);
    EXPECT_EQ(is_relaxed, graph != nullptr);
    cudaGraphDestroy(graph);
    if (!is_relaxed) {
      EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream_, &graph));
    }
  }
}

TEST(SimtBFloat16Test, RoundsToNearestEven) {
  EXPECT_EQ(0x3f80, to_bf16(1.0F).bits);
  EXPECT_EQ(0x3f80, to_bf16(1.00390625F).bits) << "a tie goes to the even one below";
  EXPECT_EQ(0x3f82, to_bf16(1.01171875F).bits) << "a tie goes to the even one above";
  EXPECT_EQ(0x7f80, to_bf16(3.4e38F).bits);
  EXPECT_EQ(0x7fff, to_bf16(std::nanf("")).bits);
  EXPECT_EQ(0xbf80'3f80U, pack_bf16(1.0F, -1.0F));
}

TEST(SimtApproximationTest, FlushesWhatIsBelowTheNormalNumbers) {
  EXPECT_EQ(1.0F, exp2_approx(0));
  EXPECT_EQ(1.0F, exp2_approx(0x1p-140F));
  EXPECT_EQ(0.0F, exp2_approx(-126.5F));
  EXPECT_EQ(0.0F, exp2_approx(-INFINITY));
  EXPECT_EQ(INFINITY, exp2_approx(129));
  EXPECT_TRUE(std::isnan(exp2_approx(std::nanf(""))));
  EXPECT_EQ(-INFINITY, reciprocal_approx(-0x1p-130F));
  EXPECT_EQ(0.0F, reciprocal_approx(INFINITY));
  EXPECT_EQ(0.0F, reciprocal_approx(0x1.8p126F));
}

TEST(SimtApproximationTest, IsAsFarOffAsADeviceMayBe) {
  double of_powers = 0;
  double of_reciprocals = 0;
  for (int i = 1; i < 5000; ++i) {
    const float x = 0.0031F * static_cast<float>(i);
    const auto exact = static_cast<double>(x);
    of_powers = std::max(of_powers, std::fabs(exp2_approx(x) / std::exp2(exact) - 1));
    of_reciprocals = std::max(of_reciprocals, std::fabs(reciprocal_approx(x) * exact - 1));
  }
  EXPECT_GT(of_powers, 0x1p-23);
  EXPECT_LT(of_powers, 0x1p-22 + 0x1p-24);
  EXPECT_GT(of_reciprocals, 0x1p-24);
  EXPECT_LT(of_reciprocals, 0x1p-23 + 0x1p-24);
}

}  // namespace
}  // namespace trainyard::simt
