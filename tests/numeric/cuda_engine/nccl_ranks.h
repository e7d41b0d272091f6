#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/ranks.h"
#include "tests/support/fake_nccl.h"
#include "worker/comm/nccl_transport.h"

/// Ranks whose emulated GPUs meet by an emulated NCCL.
namespace trainyard::engine::testing {

/// Longer than any test's operation takes, where nothing is to hang.
inline constexpr std::chrono::milliseconds kNcclPatience{60'000};

inline void begin_nccl() {
  begin_emulation();
  simt::emulation_options().seed = 5;
  testing_support::reset_fake_nccl();
}
inline void expect_clean_nccl() {
  EXPECT_EQ("", testing_support::fake_nccl().complaint);
  EXPECT_EQ(0, testing_support::fake_nccl().live_comms);
  expect_clean_emulation();
}

/// What a rank has to reach others' GPUs by.
inline Result<std::unique_ptr<comm::DeviceTransport>> fake_nccl_transport(
    Device& device, comm::Communicator& world, std::chrono::milliseconds deadline) {
  const comm::nccl::Api api = testing_support::fake_nccl_api(world.rank());
  return comm::make_nccl_transport(
      device, world, {.deadline = deadline, .grace = std::chrono::milliseconds(50), .api = &api});
}

}  // namespace trainyard::engine::testing
