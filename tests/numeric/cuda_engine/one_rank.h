#pragma once

#include <functional>

#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "tests/numeric/cuda_engine/small_run.h"
#include "worker/comm/groups.h"
#include "worker/device/cpu_device.h"

namespace trainyard::engine::testing {

/// One rank, on an emulated GPU or on processors.
class CudaEngineTest : public ::testing::TestWithParam<api::NumberFormat> {
 protected:
  void SetUp() override { begin_emulation(); }
  void TearDown() override { expect_clean_emulation(); }

  static void with_device(const api::EngineSpec& spec, const std::function<void(Device&)>& use) {
    const auto device = cuda_device(spec);
    ASSERT_TRUE(device) << device.error().message;
    use(**device);
  }
  /// `rows_of`: whose micro-batches the GPU has room for, if not those of `spec`.
  static void with_engine(api::EngineSpec spec, bool gpu, const std::function<void(Engine&)>& use,
                          bool graphs = true, const api::EngineSpec* rows_of = nullptr) {
    spec.device = gpu ? api::DeviceKind::kCuda : api::DeviceKind::kCpu;
    comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
      auto device = gpu ? cuda_device(rows_of ? *rows_of : spec, 0, 0, graphs) : make_cpu_device();
      ASSERT_TRUE(device) << device.error().message;
      const comm::Groups groups = comm::Groups::of_data_ranks(world);
      const auto engine = Engine::create(
          {.spec = spec, .device = device->get(), .groups = &groups, .unit_bytes = kUnitBytes});
      ASSERT_TRUE(engine) << engine.error().message;
      use(**engine);
    });
  }
  static void with_gpu(const api::EngineSpec& spec, const std::function<void(Engine&)>& use) {
    with_engine(spec, true, use);
  }
  static Trained train(const api::EngineSpec& spec, bool gpu, int64_t steps) {
    Trained trained;
    with_engine(spec, gpu, [&](Engine& engine) {
      const auto result = train_engine(engine, steps);
      ASSERT_TRUE(result) << result.error().message;
      trained = *result;
    });
    return trained;
  }
  static Trained on_gpu(const api::EngineSpec& spec, int64_t steps) {
    return train(spec, true, steps);
  }
  static Trained on_processor(const api::EngineSpec& spec, int64_t steps) {
    return train(spec, false, steps);
  }
};

}  // namespace trainyard::engine::testing
