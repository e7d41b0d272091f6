// What a device on an emulated GPU refuses, and how the engine ends where the GPU, its libraries or
// its memory fail.

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/numerics.h"
#include "tests/comm/worker/comm/world.h"
#include "tests/numeric/cuda_engine/one_rank.h"
#include "tests/support/exact.h"
#include "worker/device/cuda_device.h"
#include "worker/device/cuda_plan.h"
#include "worker/device/cuda_stream.h"
#include "worker/device/device_choice.h"
#include "worker/engine/limits.h"
#include "worker/matrix/world.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;
using testing_support::fake_cublaslt;

using testing::cuda_device;
using testing::CudaEngineTest;
using testing::decoder_spec;
using testing::small_spec;
using testing::smaller_if_watched;
using testing::stream_of;
using testing::train_engine;

class CudaFaultTest : public CudaEngineTest {};
INSTANTIATE_TEST_SUITE_P(Precision, CudaFaultTest, ::testing::Values(api::NumberFormat::kBF16));

/// The error of a step over `stream`.
std::string fault_of_step(Engine& engine, const std::vector<int32_t>& stream) {
  EXPECT_TRUE(engine.initialize());
  matrix::StreamBatches batches(stream, engine.spec(), 1, 0);
  const auto report = engine.step(batches);
  return report ? "none" : report.error().message;
}

TEST_P(CudaFaultTest, AFailingLibraryIsNamedWithTheInstruction) {
  const api::EngineSpec spec = smaller_if_watched(small_spec(GetParam()));
  for (const char* const function : {"create", "create_description", "create_layout",
                                     "create_preference", "heuristics", "matmul"}) {
    fake_cublaslt().fails = function;
    if (function == std::string("create")) {
      const auto device = cuda_device(spec);
      ASSERT_FALSE(device);
      EXPECT_THAT(device.error().message, HasSubstr("cublasLtCreate gave status 14"));
      continue;
    }
    with_gpu(spec, [&](Engine& engine) {
      const std::string fault = fault_of_step(engine, stream_of(spec));
      EXPECT_THAT(fault, HasSubstr("instruction ")) << function;
      EXPECT_THAT(fault, HasSubstr("cuBLASLt: ")) << function;
      EXPECT_THAT(fault, HasSubstr("status 14")) << function;
    });
  }
  fake_cublaslt().fails = "";
}

TEST_P(CudaFaultTest, SplitSumsAreNeverUsed) {
  const api::EngineSpec spec = smaller_if_watched(small_spec(GetParam()));
  fake_cublaslt().split_k = {4, 3};
  EXPECT_EQ(on_gpu(spec, 1).losses.size(), 1U);
  EXPECT_THAT(fake_cublaslt().splits_run, ::testing::Each(1));
}

TEST_P(CudaFaultTest, TokensOutsideTheVocabularyReachNoKernel) {
  const api::EngineSpec spec = smaller_if_watched(small_spec(GetParam()));
  with_gpu(spec, [&](Engine& engine) {
    auto stream = stream_of(spec);
    stream[5] = 64 * 1024;
    EXPECT_THAT(fault_of_step(engine, stream), HasSubstr("a token of a micro-batch: found 65536"));
  });
  with_gpu(spec, [&](Engine& engine) {
    auto stream = stream_of(spec);
    stream[5] = -1;
    EXPECT_THAT(fault_of_step(engine, stream), HasSubstr("a token of a micro-batch: found -1"));
  });
  // The last target alone, in the padding of the vocabulary.
  with_gpu(spec, [&](Engine& engine) {
    auto stream = stream_of(spec);
    stream[spec.batch.global_sequences * spec.data.sequence_length] = 67;
    EXPECT_THAT(fault_of_step(engine, stream), HasSubstr("a target of a micro-batch: found 67"));
  });
}

// What ranks of a ring have of keys has no kernel on a GPU.
TEST_P(CudaFaultTest, PartsOfKeysReachNoKernel) {
  const api::EngineSpec spec = small_spec(GetParam());
  const auto fault = [&](const std::function<void(kernels::KernelSet&)>& call) {
    std::string found = "none";
    with_device(spec, [&](Device& device) {
      const auto scratch = *device.memory().allocate(device.kernels().scratch_bytes());
      device.kernels().set_scratch(scratch->bytes());
      call(device.kernels());
      if (const Status status = device.status(); !status) found = status.error().message;
    });
    return found;
  };
  const kernels::Sequence sequence{.length = 1};
  const kernels::Rows rows{.count = 1, .sequences = {&sequence, 1}};
  const kernels::KeyBlock keys;
  EXPECT_THAT(fault([&](kernels::KernelSet& kernels) {
                kernels.attention_forward(
                    {.rows = rows, .keys = &keys, .heads = 1, .kv_heads = 1, .head_dim = 64});
              }),
              HasSubstr("CUDA: attention_forward: cudaErrorInvalidValue"));
}

TEST_P(CudaFaultTest, GradientsRoundedByBlocksOfRowsAreTheSame) {
  const api::EngineSpec spec = smaller_if_watched(small_spec(GetParam()));
  const auto device = cuda_device(spec, 0, int64_t{50} * spec.model.hidden);
  ASSERT_TRUE(device);
  comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
    const comm::Groups groups = comm::Groups::of_data_ranks(world);
    const auto engine = Engine::create({.spec = spec, .device = device->get(), .groups = &groups});
    ASSERT_TRUE(engine) << engine.error().message;
    const auto trained = train_engine(**engine, 1);
    ASSERT_TRUE(trained) << trained.error().message;
    EXPECT_TRUE(testing_support::same_hash(trained->hash, on_gpu(spec, 1).hash));
  });
}

TEST_P(CudaFaultTest, MoreRowsThanPlannedAreRefusedByName) {
  api::EngineSpec spec = small_spec(GetParam());
  const auto device = cuda_device(spec);
  ASSERT_TRUE(device);
  spec.batch.micro_sequences = 4;
  comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
    const comm::Groups groups = comm::Groups::of_data_ranks(world);
    const auto engine = Engine::create({.spec = spec, .device = device->get(), .groups = &groups});
    ASSERT_TRUE(engine) << engine.error().message;
    EXPECT_THAT(fault_of_step(**engine, stream_of(spec)),
                HasSubstr("embedding_forward: found 52 rows of 128, wanted at most 26 of 384"));
  });
}

TEST_P(CudaFaultTest, EveryAllocationMayFail) {
  const api::EngineSpec spec = small_spec(GetParam());
  simt::emulation_options().print_errors = false;
  int64_t failing = 0;
  for (bool is_made = false; !is_made; ++failing) {
    ASSERT_LT(failing, 50);
    simt::emulation_options().fail_allocation = failing;
    const auto device = cuda_device(spec);
    std::string fault = device ? "" : device.error().message;
    comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
      if (!device) return;
      const comm::Groups groups = comm::Groups::of_data_ranks(world);
      const auto engine =
          Engine::create({.spec = spec, .device = device->get(), .groups = &groups});
      is_made = engine.has_value();
      if (!is_made) fault = engine.error().message;
    });
    if (!is_made) {
      EXPECT_THAT(fault, ::testing::AnyOf(HasSubstr("out of memory"), HasSubstr("GPU memory")));
    }
  }
  EXPECT_GT(failing, 6);
  simt::reset_emulation();
  simt::emulation_options().fail_allocation = -1;
  simt::emulation_options().memory_bytes = 1 << 20;
  with_device(spec, [](Device& device) {
    const auto block = device.memory().allocate(2 << 20);
    ASSERT_FALSE(block);
    EXPECT_THAT(block.error().message,
                HasSubstr("found 1048576 of 1048576 bytes free, wanted 2097152 more"));
    // It was handled: nobody hears of it.
    EXPECT_TRUE(device.wait());
    EXPECT_TRUE(device.memory().allocate(1 << 10));
  });
  simt::reset_emulation();
}

/// As many tensors as a block of any family has.
TEST_P(CudaFaultTest, TensorsOfAUnitAreUpdatedByOneLaunch) {
  with_device(small_spec(GetParam()), [](Device& device) {
    constexpr int64_t kTensors = 16;
    constexpr int64_t kCount = 8;
    const auto floats = *device.memory().allocate(kTensors * kCount * 4 * 4);
    const auto scalars = *device.memory().allocate(sizeof(kernels::OptimizerScalars));
    auto* at = reinterpret_cast<float*>(floats->bytes().data());
    std::vector<kernels::AdamW> tensors;
    for (int64_t i = 0; i < kTensors; ++i, at += 4 * kCount) {
      tensors.push_back(
          {.count = kCount,
           .gradient = {.rounded = at},
           .parameter = at + kCount,
           .m = at + 2 * kCount,
           .v = at + 3 * kCount,
           .scalars = reinterpret_cast<kernels::OptimizerScalars*>(scalars->bytes().data())});
    }
    const uint64_t before = simt::emulation_counters().launches;
    device.kernels().adamw(tensors);
    EXPECT_TRUE(device.wait());
    EXPECT_EQ(simt::emulation_counters().launches, before + 1);
  });
}

TEST_P(CudaFaultTest, ADeadlineEndsAWaitAndLeavesNoErrorBehind) {
  simt::emulation_options().seed = 7;
  with_device(small_spec(GetParam()), [](Device& device) {
    const auto block = *device.memory().allocate(1 << 10);
    for (int i = 0; i < 100; ++i)
      device.kernels().clear(block->bytes().data(), 1 << 10);
    const Status late = device.wait(std::chrono::milliseconds(0));
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_TRUE(device.wait());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  });
}

TEST_P(CudaFaultTest, AnErrorOfTheGpuStays) {
  simt::emulation_options().print_errors = false;
  with_device(small_spec(GetParam()), [](Device& device) {
    const auto block = *device.memory().allocate(1 << 10);
    std::byte inside;
    (void)cudaFree(&inside);  // an error that the emulation keeps
    device.kernels().clear(block->bytes().data(), 1 << 10);
    const Status status = device.status();
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr("CUDA: clear: "));
    EXPECT_FALSE(device.wait());
    EXPECT_FALSE(device.memory().allocate(1));
    simt::reset_emulation();
    std::byte any{};
    device.copy({&any, block->bytes().data(), 1});
    EXPECT_FALSE(device.wait());
    EXPECT_EQ(device.status().error().message, status.error().message);
  });
}

TEST_P(CudaFaultTest, TheFirstFailureIsTheOneThatIsNamed) {
  const auto stream = CudaStream::create(kDeviceDeadline);
  ASSERT_TRUE(stream);
  EXPECT_TRUE((*stream)->note("gelu", cudaSuccess));
  EXPECT_FALSE((*stream)->note("norm", cudaErrorInvalidValue));
  EXPECT_FALSE((*stream)->note("cast", cudaErrorMemoryAllocation));
  (*stream)->note(Error{ErrorCode::kInternal, "a product"});
  EXPECT_THAT((*stream)->status().error().message, HasSubstr("CUDA: norm: cudaErrorInvalidValue"));
}

TEST_P(CudaFaultTest, HardwareAndMemoryAreNoBugs) {
  for (const cudaError_t error :
       {cudaErrorDevicesUnavailable, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
        cudaErrorContained, cudaErrorHardwareStackError, cudaErrorSystemNotReady}) {
    const Error found = cuda_error("gelu", error);
    EXPECT_EQ(found.code, ErrorCode::kUnavailable) << found.message;
    EXPECT_THAT(found.message, HasSubstr(cudaGetErrorName(error)));
    EXPECT_THAT(found.message, HasSubstr("a link has failed or is not available"));
  }
  const Error memory = cuda_error("gelu", cudaErrorMemoryAllocation);
  EXPECT_EQ(memory.code, ErrorCode::kUnavailable);
  EXPECT_EQ(memory.message, "CUDA: gelu: cudaErrorMemoryAllocation: out of memory");
  const Error bug = cuda_error("gelu", cudaErrorIllegalAddress);
  EXPECT_EQ(bug.code, ErrorCode::kInternal);
  EXPECT_EQ(bug.message,
            "CUDA: gelu: cudaErrorIllegalAddress: an illegal memory access was encountered");
}

TEST_P(CudaFaultTest, CopiesOfAnyMemoryAndSizeRunInOrder) {
  simt::emulation_options().seed = 3;
  with_device(small_spec(GetParam()), [](Device& device) {
    constexpr size_t kBytes = static_cast<size_t>(kPinnedBytes) + 12345;
    const auto block = *device.memory().allocate(2 * static_cast<int64_t>(kBytes));
    const auto pinned = *device.host_memory().allocate(static_cast<int64_t>(kBytes));
    EXPECT_EQ(pinned->bytes()[kBytes - 1], std::byte{0});
    std::byte* const there = block->bytes().data();
    std::vector<std::byte> from(kBytes);
    for (size_t i = 0; i < kBytes; ++i)
      from[i] = static_cast<std::byte>(i * 7 + i / 251);
    std::vector<std::byte> back(kBytes);
    device.copy({there, from.data(), kBytes});
    device.copy({there + kBytes, there, kBytes});
    device.copy({pinned->bytes().data(), there + kBytes, kBytes});
    device.copy({back.data(), there + kBytes, kBytes});
    device.copy({there, pinned->bytes().data(), 0});
    ASSERT_TRUE(device.wait());
    EXPECT_TRUE(back == from);
    EXPECT_TRUE(std::equal(from.begin(), from.end(), pinned->bytes().begin()));
    const std::byte none = back[0];
    device.kernels().clear(there, 1);
    device.copy({back.data(), there, 1});
    ASSERT_TRUE(device.wait());
    EXPECT_EQ(back[0], std::byte{0});
    EXPECT_EQ(none, from[0]);
  });
}

TEST_P(CudaFaultTest, RefusesMachinesByName) {
  const CudaSupport support = {find_cuda_device, make_cuda_device};
  const auto fault = [&](int local_rank, const CudaSupport* cuda) {
    const auto kind = resolve_device(api::DeviceKind::kCuda, local_rank, cuda);
    return kind ? std::string("none") : kind.error().message;
  };
  EXPECT_EQ(fault(0, &support), "none");
  EXPECT_THAT(fault(0, nullptr), HasSubstr("was built without CUDA"));
  EXPECT_THAT(fault(1, &support),
              HasSubstr("1 GPUs that this process sees, wanted at least 2, one per rank"));
  const auto automatic = [&](int local_rank, const CudaSupport* cuda) {
    return *resolve_device(api::DeviceKind::kAuto, local_rank, cuda);
  };
  EXPECT_EQ(automatic(0, &support), api::DeviceKind::kCuda);
  EXPECT_EQ(automatic(0, nullptr), api::DeviceKind::kCpu);
  EXPECT_EQ(automatic(1, &support), api::DeviceKind::kCpu);
  simt::emulation_options().devices = 0;
  EXPECT_THAT(fault(0, &support), HasSubstr("0 GPUs that this process sees, wanted at least 1"));
  EXPECT_EQ(automatic(0, &support), api::DeviceKind::kCpu);
  simt::emulation_options() = {};
  simt::emulation_options().driver_version = 12080;
  EXPECT_THAT(fault(0, &support), HasSubstr("a driver for CUDA 12.8, wanted one for CUDA 13.0"));
  simt::emulation_options().driver_version = 0;
  EXPECT_THAT(fault(0, &support), HasSubstr("no NVIDIA driver"));
  simt::emulation_options() = {};
  simt::emulation_options().capability_major = 7;
  simt::emulation_options().capability_minor = 5;
  EXPECT_THAT(fault(0, &support),
              HasSubstr("a GPU (emulation) of compute capability 7.5, wanted 8.0 or newer"));
  simt::emulation_options() = {};
  const auto without = make_cuda_device({});
  if (!without) {  // on a machine without the library
    EXPECT_THAT(without.error().message, HasSubstr("LD_LIBRARY_PATH"));
    EXPECT_THAT(without.error().message, HasSubstr("libcublas-13-0"));
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_P(CudaFaultTest, MemoryThatAnotherProgramHasIsNotFree) {
  simt::emulation_options().memory_bytes = int64_t{64} << 20;
  void* others = nullptr;
  ASSERT_EQ(cudaMalloc(&others, size_t{48} << 20), cudaSuccess);
  with_device(small_spec(GetParam()), [](Device& device) {
    const auto block = device.memory().allocate(int64_t{32} << 20);
    ASSERT_FALSE(block);
    EXPECT_EQ(block.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(
        block.error().message,
        ::testing::AllOf(HasSubstr("found 16777216 of 67108864 bytes free, wanted 33554432"),
                         HasSubstr("or a GPU that nothing else uses")));
  });
  EXPECT_EQ(cudaFree(others), cudaSuccess);
  simt::reset_emulation();
}

TEST_P(CudaFaultTest, RefusesPartsThatTensorRanksCannotHave) {
  api::EngineSpec spec = testing::decoder_spec(GetParam());
  spec.model.family = api::ModelFamily::kLlama;
  spec.model.heads = 4;
  spec.model.kv_heads = 2;
  spec.model.ffn = 144;
  spec.parallelism.tensor = 2;
  spec.numerics = {.mode = api::NumericsMode::kCanonical};
  const auto fault = [](api::EngineSpec of) {
    of.numerics = api::with_defaults(of);
    const Status status = check_kernel_limits(of, limits_of(of.device));
    return status ? std::string("none") : status.error().message;
  };
  const auto fast = [](api::EngineSpec of) {
    of.numerics = {.mode = api::NumericsMode::kFast};
    return of;
  };
  EXPECT_EQ(fault(spec), "none");
  EXPECT_EQ(fault(fast(spec)), "none");
  api::EngineSpec other = spec;
  other.parallelism.sequence_parallel = true;
  other.data.sequence_length = 12;
  EXPECT_THAT(fault(other), HasSubstr("engine.parallelism.sequenceParallel: found true, wanted "
                                      "false with Canonical numerics"));
  EXPECT_EQ(fault(fast(other)), "none");
  other = spec;
  other.model.family = api::ModelFamily::kQwen3;
  EXPECT_THAT(fault(other), HasSubstr("engine.parallelism.tensor: found 2, wanted 1 with Canonical "
                                      "numerics for Qwen3"));
  EXPECT_EQ(fault(fast(other)), "none");
  other = spec;
  other.model.ffn = 136;
  EXPECT_EQ(fault(other),
            "engine.parallelism.tensor: found 2, wanted a number that cuts model.ffn (136) into "
            "multiples of 8 on a GPU");
  EXPECT_EQ(fault(fast(other)),
            "engine.parallelism.tensor: found 2, wanted a number that cuts model.ffn (136) into "
            "multiples of 8 on a GPU");
  other = spec;
  other.parallelism.tensor = 4;
  EXPECT_EQ(fault(fast(other)),
            "engine.parallelism.tensor: found 4, wanted a divisor of model.kvHeads (2) on a GPU, "
            "where ranks share no key-value heads; use engine.device: Cpu");
}

TEST_P(CudaFaultTest, RefusesShapesWithoutKernels) {
  api::EngineSpec spec = small_spec(GetParam());
  const auto fault = [&] {
    const Status status = check_kernel_limits(spec, limits_of(spec.device));
    return status ? std::string("none") : status.error().message;
  };
  EXPECT_EQ(fault(), "none");
  spec.model.ffn = 100;
  EXPECT_EQ(fault(), "engine.model.ffn: found 100, wanted a multiple of 8 on a GPU");
  spec.model.heads = 8;
  EXPECT_EQ(fault(),
            "engine.model.heads: found 8, wanted heads of 32 or 64 or 96 or 128 features, not 16, "
            "on a GPU; change it, or use engine.device: Cpu");
  spec.model.head_dim = 160;
  EXPECT_EQ(fault(),
            "engine.model.headDim: found 160, wanted 32 or 64 or 96 or 128 on a GPU; change it, or "
            "use engine.device: Cpu");
  spec.model.head_dim = 64;
  spec.model.hidden = 1002;
  EXPECT_EQ(fault(), "engine.model.hidden: found 1002, wanted a multiple of 8 on a GPU");
  spec.model.head_dim = 0;
  spec.model.heads = 128;
  spec.model.hidden = 8256;
  spec.model.heads = 129;
  EXPECT_EQ(fault(), "engine.model.hidden: found 8256, wanted at most 8192 on a GPU");
}

}  // namespace
}  // namespace trainyard::engine
