#include "cli/training_rate.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "common/io/control_group.h"
#include "worker/comm/factory.h"
#include "worker/comm/groups.h"
#include "worker/data/batch_loader.h"
#include "worker/data/dataset.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"
#include "worker/engine/limits.h"
#include "worker/job/job_plan.h"
#include "worker/job/resolve.h"

namespace trainyard::cli {
namespace {

constexpr std::chrono::seconds kMeasured{2};
constexpr int64_t kMicroBatchesMax = 2;

}  // namespace

Result<double> measured_rate(api::EngineSpec spec, const std::filesystem::path& tokens) {
  using Clock = std::chrono::steady_clock;
  const std::string paths[] = {tokens.string()};
  TRAINYARD_ASSIGN(const data::TokenSet set,
                   data::TokenSet::open(std::span<const std::string>(paths)));
  spec.device = api::DeviceKind::kCpu;
  spec.batch.global_sequences =
      std::min(spec.batch.global_sequences, kMicroBatchesMax * spec.batch.micro_sequences);
  TRAINYARD_TRY(engine::resolve_spec(spec, std::nullopt));
  TRAINYARD_ASSIGN(
      const engine::MemoryPlan plan,
      engine::plan_job(spec, {.kernel_scratch_bytes = engine::cpu_scratch_bytes(usable_cpus()),
                              .writes_checkpoints = false}));
  TRAINYARD_TRY(engine::check_memory(plan, {0, 1}, spec, engine::memory_room()));
  TRAINYARD_ASSIGN(const auto alone,
                   comm::make_communicator(comm::TransportKind::kLocal,
                                           {.endpoints = {{.rank = 0}}, .job_uid = "rate"}, {}));
  const comm::Groups groups = comm::Groups::of_data_ranks(*alone);
  TRAINYARD_ASSIGN(const auto device, engine::make_cpu_device({.threads = usable_cpus()}));
  TRAINYARD_ASSIGN(
      const auto engine,
      engine::Engine::create({.spec = spec, .device = device.get(), .groups = &groups}));
  TRAINYARD_TRY(engine->initialize());
  TRAINYARD_ASSIGN(auto batches,
                   data::BatchLoader::open(set, {.tokens_per_sample = spec.data.sequence_length,
                                                 .batch = engine::partition_of(spec, 1)}));
  TRAINYARD_TRY(engine->step(batches));  // its memory is touched for the first time
  const auto begin = Clock::now();
  int64_t steps = 0;
  while (steps == 0 || Clock::now() - begin < kMeasured) {
    TRAINYARD_TRY(engine->step(batches));
    ++steps;
  }
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  return static_cast<double>(steps * spec.batch.global_sequences * spec.data.sequence_length) /
         seconds.count();
}

}  // namespace trainyard::cli
