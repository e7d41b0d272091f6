// What host code may not touch is without access while it runs: an engine that trains here, saves
// and loads, touches device memory through its Device alone. Nor does it read what a collective
// leaves before it has waited for it.

#include "tests/unit/worker/device/guarded_device.h"

#include <csignal>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/reader.h"
#include "worker/job/engine_state.h"
#include "worker/matrix/world.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kSteps = 3;

/// Trains, evaluates and returns the state's hash.
Result<std::string> train_guarded(const api::EngineSpec& spec, const matrix::Cell& cell,
                                  comm::Communicator& host, const std::vector<int32_t>& stream) {
  testing::GuardedDevice device;
  const std::unique_ptr<comm::Communicator> world = testing::on_device(host, device);
  TRAINYARD_ASSIGN(const comm::Groups groups, comm::Groups::make(*world, cell.mesh()));
  TRAINYARD_ASSIGN(
      const auto engine,
      Engine::create({.spec = spec, .device = &device, .groups = &groups, .unit_bytes = 64 << 10}));
  EXPECT_TRUE(engine->initialize());
  matrix::StreamBatches batches(stream, spec, groups.data_ranks(), groups.data_rank());
  for (int64_t step = 0; step < kSteps; ++step)
    TRAINYARD_TRY(engine->step(batches));
  TRAINYARD_ASSIGN(const Hash128 hash, EngineState(*engine).hash());
  matrix::StreamBatches held_out(stream, spec, groups.data_ranks(), groups.data_rank());
  TRAINYARD_TRY(
      engine->evaluate(held_out, spec.batch.global_sequences, spec.batch.micro_sequences));
  return to_hex(hash);
}

class GuardedDeviceTest : public ::testing::TestWithParam<matrix::Cell> {};

std::vector<matrix::Cell> cells() {
  return {{.micro_sequences = 4},
          {.ranks = 2, .micro_sequences = 4, .shard = 1, .zero_stage = 0},
          {.ranks = 3, .micro_sequences = 1, .zero_stage = 1},
          {.ranks = 4, .micro_sequences = 2, .shard = 2, .zero_stage = 2},
          {.ranks = 4, .micro_sequences = 2, .shard = 1, .zero_stage = 0, .pipeline = 2},
          {.ranks = 2, .micro_sequences = 4, .zero_stage = 3},
          {.ranks = 2, .micro_sequences = 4, .pipeline = 2, .recompute = api::Recompute::kFull},
          {.ranks = 2, .micro_sequences = 4, .tensor = 2},
          {.ranks = 2, .micro_sequences = 4, .context = 2}};
}

INSTANTIATE_TEST_SUITE_P(Cells, GuardedDeviceTest, ::testing::ValuesIn(cells()));

TEST_P(GuardedDeviceTest, TrainsToTheBitsOfTheProcessor) {
  const matrix::Cell& cell = GetParam();
  for (const auto compute : {api::NumberFormat::kFP32, api::NumberFormat::kBF16}) {
    const bool is_divided = cell.tensor > 1 || cell.context > 1;  // within layers
    api::EngineSpec spec = is_divided ? matrix::context_spec(compute) : matrix::prime_spec(compute);
    const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 99);
    const auto expected = matrix::train_world(spec, {}, kSteps, stream);
    ASSERT_TRUE(expected) << expected.error().message;
    spec.batch.micro_sequences = cell.micro_sequences;
    spec.parallelism.zero_stage = cell.zero_stage;
    spec.parallelism.shard = cell.shard;
    spec.parallelism.pipeline = cell.pipeline;
    spec.parallelism.recompute = cell.recompute;
    spec.parallelism.tensor = cell.tensor;
    spec.parallelism.context = cell.context;
    comm::testing::run_world(comm::TransportKind::kLocal, cell.ranks,
                             [&](comm::Communicator& world) {
                               const auto hash = train_guarded(spec, cell, world, stream);
                               ASSERT_TRUE(hash) << hash.error().message;
                               EXPECT_EQ(*hash, expected->front().state_hash);
                             });
  }
}

TEST(GuardedDeviceDeathTest, AHostTouchEndsTheProcess) {
  testing::GuardedDevice device;
  const auto block = *device.memory().allocate(64);
  const auto touch = [&] {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would report what is meant to happen
    block->bytes()[0] = std::byte{1};
  };
  EXPECT_DEATH(touch(), "");
}

TEST(GuardedDeviceDeathTest, AKernelOnHostMemoryEndsTheProcess) {
  testing::GuardedDevice device;
  const auto block = *device.memory().allocate(64);
  auto* const here = reinterpret_cast<float*>(block->bytes().data());
  float on_host[4] = {};
  kernels::KernelSet& kernels = device.kernels();
  kernels.clear(here, sizeof(on_host));
  EXPECT_DEATH(kernels.gelu_forward({.count = 4, .x = on_host, .y = here}), "holds");
  EXPECT_DEATH(kernels.gelu_forward({.count = 4, .x = here, .y = on_host}), "holds");
  EXPECT_DEATH(kernels.copy(on_host, here, sizeof(on_host)), "holds");
}

TEST(GuardedCheckpointTest, WhatWasSavedIsLoadedAndSampled) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kBF16);
  const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 99);
  checkpoint::PosixFileSystem files;
  checkpoint::testing::JobDirectory job;
  const auto with_engine = [&](Purpose purpose, const auto& use) {
    comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& host) {
      testing::GuardedDevice device;
      const std::unique_ptr<comm::Communicator> world = testing::on_device(host, device);
      const comm::Groups groups = comm::Groups::of_data_ranks(*world);
      const auto engine =
          Engine::create({.spec = spec, .device = &device, .groups = &groups, .purpose = purpose});
      ASSERT_TRUE(engine) << engine.error().message;
      use(**engine);
    });
  };
  std::string saved;
  with_engine(Purpose::kTrain, [&](Engine& engine) {
    EXPECT_TRUE(engine.initialize());
    matrix::StreamBatches batches(stream, spec, 1, 0);
    ASSERT_TRUE(engine.step(batches));
    EngineState state(engine);
    saved = to_hex(state.hash().value());
    checkpoint::testing::save_first(files, job, *state.snapshot());
  });
  const auto reader = checkpoint::open_newest_good(files, job.root(), std::nullopt,
                                                   checkpoint::Verify::kAll, nullptr);
  ASSERT_TRUE(reader) << reader.error().message;
  std::vector<float> logits;
  for (const Purpose purpose : {Purpose::kTrain, Purpose::kInfer}) {
    with_engine(purpose, [&](Engine& engine) {
      EngineState state(engine);
      const Status loaded = state.load(**reader);
      ASSERT_TRUE(loaded) << loaded.error().message;
      if (purpose == Purpose::kTrain) {
        EXPECT_EQ(to_hex(state.hash().value()), saved);
      }
      const auto found = engine.next_logits(std::span(stream).first(7));
      ASSERT_TRUE(found) << found.error().message;
      if (purpose == Purpose::kTrain) logits.assign(found->begin(), found->end());
      EXPECT_EQ(std::vector<float>(found->begin(), found->end()), logits);
    });
  }
}

}  // namespace
}  // namespace trainyard::engine
