#include "worker/rank/rank_device.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "worker/job/job_plan.h"
#include "worker/rank/gpu_figures.h"

namespace trainyard::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

milliseconds deadline{};

Result<std::unique_ptr<Device>> keep_deadline(const CudaDeviceOptions& options) {
  deadline = options.deadline;
  return Error{ErrorCode::kUnavailable, "no GPU"};
}

api::EngineSpec small_spec() {
  api::EngineSpec spec;
  spec.device = api::DeviceKind::kCuda;
  spec.model = {.layers = 1, .hidden = 64, .heads = 1, .kv_heads = 1, .ffn = 256};
  spec.model.vocab = 100;
  spec.model.max_positions = spec.data.sequence_length = 16;
  spec.batch = {.global_sequences = 2, .micro_sequences = 1};
  return spec;
}

TEST(GpuFiguresTest, PeaksAreThoseOfTheDriversNames) {
  const std::vector<std::pair<std::string, double>> names = {
      {"NVIDIA H200", 989.4},
      {"NVIDIA H200 NVL", 835.5},
      {"NVIDIA H100 80GB HBM3", 989.4},
      {"NVIDIA H100 PCIe", 756.5},
      {"NVIDIA H100 NVL", 835.5},
      {"NVIDIA GH200 480GB", 989.4},
      {"NVIDIA A100-SXM4-80GB", 312},
      {"NVIDIA A100 80GB PCIe", 312},
      {"NVIDIA A10", 125},
      {"NVIDIA L4", 121},
      {"NVIDIA L40S", 362},
      {"NVIDIA RTX 6000 Ada Generation", 364.2},
      {"NVIDIA GeForce RTX 4090", 165.2},
      {"NVIDIA B200", 2250},
      {"NVIDIA GB200", 2500},
      {"NVIDIA A10G", 0},
      {"NVIDIA H2000", 0},
      {"NVIDIA GeForce RTX 4090 Laptop GPU", 0},
      {"NVIDIA GeForce RTX 3090 Ti", 0},
      {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0},
      {"GRID A100-10C", 0},
      {"NVIDIA A100-1-5C", 0},
      {"Quadro RTX 6000", 0},
      {"", 0},
  };
  for (const auto& [name, teraflops] : names)
    EXPECT_EQ(peak_bf16_flops(name), teraflops * 1e12) << name;
}

TEST(GpuFiguresTest, UtilizationIsOfThePeakOfAllGpus) {
  api::EngineSpec spec = small_spec();
  spec.precision.compute = api::NumberFormat::kBF16;
  const auto two = plan_job(spec, {.ranks = 2});
  ASSERT_TRUE(two) << two.error().message;
  const double tokens_per_second = 1e9;
  const double flops = tokens_per_second / 16 * static_cast<double>(two->model_flops());
  EXPECT_DOUBLE_EQ(GpuFigures(*two, "NVIDIA H200").utilization(tokens_per_second),
                   flops / (2 * 989.4e12));
  EXPECT_EQ(GpuFigures(*two, "another").utilization(tokens_per_second), 0);
  spec.precision.compute = api::NumberFormat::kFP32;
  const auto fp32 = plan_job(spec, {.ranks = 2});
  ASSERT_TRUE(fp32) << fp32.error().message;
  EXPECT_EQ(GpuFigures(*fp32, "NVIDIA H200").utilization(tokens_per_second), 0);
}

TEST(RankDeviceTest, WhatGoesThroughTheHostIsTold) {
  api::EngineSpec spec = small_spec();
  const auto doubt = [&] {
    const auto plan = plan_job(spec, {.ranks = 2});
    EXPECT_TRUE(plan) << plan.error().message;
    return doubt_of_staging(*plan);
  };
  EXPECT_THAT(doubt(), ::testing::HasSubstr("through host memory: rank 0 sends "));
  for (const api::Transport named : {api::Transport::kShm, api::Transport::kTcp}) {
    spec.runtime.transport = named;
    EXPECT_EQ(doubt(), "");
  }
}

TEST(RankDeviceTest, AGpuHasAsLongAsTheJobAllowsAStall) {
  const CudaSupport cuda{.make = keep_deadline};
  const api::EngineSpec spec = small_spec();
  for (const auto& [patience, expected] :
       {std::pair(minutes(1), kDeviceDeadline), std::pair(minutes(46), minutes(45))}) {
    const auto device = make_rank_device(spec, 0, 1, &cuda, patience, {});
    EXPECT_FALSE(device);
    EXPECT_EQ(deadline, expected) << device.error().message;
  }
}

Result<CudaFacts> no_driver(int) { return Error{ErrorCode::kInvalidConfig, "no NVIDIA driver"}; }
Result<CudaFacts> broken(int) { return Error{ErrorCode::kUnavailable, "an ECC error"}; }

TEST(RankDeviceTest, AutoSaysWhyItHasNotChosenTheGpuOfItsMachine) {
  comm::testing::run_world(comm::TransportKind::kLocal, 1, [](comm::Communicator& world) {
    const CudaSupport without_driver{.find = no_driver};
    const CudaSupport with_broken_gpu{.find = broken};
    std::string told;
    const auto agree = [&](const CudaSupport* cuda, bool sees_gpus,
                           std::optional<api::DeviceKind> recorded = {}) {
      told.clear();
      return agree_on_device({.recorded = recorded, .sees_gpus = sees_gpus}, 0, cuda, world,
                             [&](const std::string& doubt) { told += doubt; });
    };
    EXPECT_EQ(agree(&without_driver, true).value(), api::DeviceKind::kCpu);
    EXPECT_EQ(told,
              "this machine has a GPU, but engine.device: Auto has chosen Cpu: no NVIDIA driver");
    EXPECT_EQ(agree(nullptr, true).value(), api::DeviceKind::kCpu);
    EXPECT_THAT(told, ::testing::HasSubstr("Auto has chosen Cpu: this trainyard-worker was built "
                                           "without CUDA; "));
    EXPECT_EQ(agree(&without_driver, false).value(), api::DeviceKind::kCpu);
    EXPECT_EQ(told, "");
    EXPECT_EQ(agree(&without_driver, true, api::DeviceKind::kCpu).value(), api::DeviceKind::kCpu);
    EXPECT_EQ(told, "") << "nobody expects it to change";
    const auto refused = agree(&with_broken_gpu, true);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(refused.error().message, "an ECC error");
  });
}

TEST(RankDeviceTest, NumericsThatDoNotCountAreNamed) {
  api::EngineSpec spec;
  spec.device = api::DeviceKind::kCuda;
  EXPECT_EQ(doubt_of_numerics(spec), "");
  spec.numerics.tensor_chunks = 2;
  spec.numerics.grain_sequences = 3;
  EXPECT_EQ(doubt_of_numerics(spec), "");
  spec.numerics.grain_tokens = 64;
  spec.numerics.key_block = 16;
  EXPECT_EQ(doubt_of_numerics(spec),
            "engine.numerics: found grainTokens (64) and keyBlock (16), which GPUs do not use; "
            "engine.device: Auto has chosen Cuda; remove them, or set engine.device");
  spec.device = api::DeviceKind::kCpu;
  EXPECT_EQ(doubt_of_numerics(spec),
            "engine.numerics: found grainSequences (3), which CPUs do not "
            "use; engine.device: Auto has chosen Cpu; remove them, or set engine.device");
}

}  // namespace
}  // namespace trainyard::engine
