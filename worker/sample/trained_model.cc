#include "worker/sample/trained_model.h"

#include <algorithm>

#include "common/io/control_group.h"
#include "worker/comm/factory.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/limits.h"
#include "worker/hf/run_facts.h"
#include "worker/job/engine_state.h"
#include "worker/job/import_export.h"

namespace trainyard::engine {

Result<std::unique_ptr<TrainedModel>> TrainedModel::create(api::EngineSpec spec, int threads) {
  auto model = std::unique_ptr<TrainedModel>(new TrainedModel());
  // Of the run nothing matters but its model: its batches may be more than one process takes, and
  // its instruction set, which changes no bit, one that this machine lacks.
  spec.device = api::DeviceKind::kCpu;
  spec.batch = {.global_sequences = 1, .micro_sequences = 1};
  spec.parallelism = {};
  TRAINYARD_ASSIGN(model->alone_,
                   comm::make_communicator(comm::TransportKind::kLocal,
                                           {.endpoints = {{.rank = 0}}, .job_uid = "sample"}, {}));
  model->groups_ = comm::Groups::of_data_ranks(*model->alone_);
  TRAINYARD_ASSIGN(model->device_,
                   make_cpu_device({.isa = kernels::isa_or_best(kernel_isa(spec.runtime.isa)),
                                    .threads = threads > 0 ? threads : usable_cpus()}));
  // Ranks of a ring may have trained on longer ones.
  spec.data.sequence_length =
      std::min(spec.data.sequence_length, attended_positions(spec.model, model->device_->limits()));
  TRAINYARD_ASSIGN(model->engine_, Engine::create({.spec = spec,
                                                   .device = model->device_.get(),
                                                   .groups = &model->groups_,
                                                   .purpose = Purpose::kInfer}));
  return model;
}

Result<std::unique_ptr<TrainedModel>> TrainedModel::load(checkpoint::CheckpointReader& reader,
                                                         int threads) {
  TRAINYARD_ASSIGN(api::EngineSpec spec, hf::spec_of_run(reader));
  TRAINYARD_ASSIGN(auto model, create(std::move(spec), threads));
  TRAINYARD_TRY(EngineState(*model->engine_).load(reader));
  return model;
}

Result<std::unique_ptr<TrainedModel>> TrainedModel::load(const hf::HfModel& folder,
                                                         int64_t sequence_length, int threads) {
  api::EngineSpec spec{.model = folder.spec()};
  spec.data.sequence_length = sequence_length;
  TRAINYARD_ASSIGN(auto model, create(std::move(spec), threads));
  TRAINYARD_TRY(import_parameters(folder, *model->engine_));
  return model;
}

}  // namespace trainyard::engine
