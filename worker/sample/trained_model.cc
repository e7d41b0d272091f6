#include "worker/sample/trained_model.h"

#include "common/api/decode.h"
#include "common/io/control_group.h"
#include "kernels/cpu/isa.h"
#include "worker/comm/factory.h"
#include "worker/hf/run_facts.h"
#include "worker/train/engine_state.h"
#include "worker/train/resolve.h"

namespace trainyard::engine {

Result<std::unique_ptr<TrainedModel>> TrainedModel::load(checkpoint::CheckpointReader& reader,
                                                         int threads) {
  auto model = std::unique_ptr<TrainedModel>(new TrainedModel());
  TRAINYARD_ASSIGN(api::EngineSpec spec,
                   api::decode_engine(reader.manifest().config_json,
                                      {.file = reader.directory().string() + "/manifest.json",
                                       .unknown_keys = api::UnknownKeys::kIgnore}));
  // Of the run nothing matters but its model: its batches may be more than one process takes, and
  // its instruction set, which changes no bit, one that this machine lacks.
  spec.batch = {.global_sequences = 1, .micro_sequences = 1};
  Gpt2Config config = gpt2_config(spec);
  config.layer_norm_epsilon = hf::run_facts_of(reader.manifest().config_json)
                                  .layer_norm_epsilon.value_or(config.layer_norm_epsilon);
  TRAINYARD_ASSIGN(model->alone_,
                   comm::make_communicator(comm::TransportKind::kLocal,
                                           {.endpoints = {{.rank = 0}}, .job_uid = "sample"}, {}));
  model->groups_ = comm::Groups::of_data_ranks(*model->alone_);
  TRAINYARD_ASSIGN(model->engine_,
                   Engine::create({.spec = spec,
                                   .model = config,
                                   .isa = kernels::isa_or_best(kernel_isa(spec.runtime.isa)),
                                   .threads = threads > 0 ? threads : usable_cpus(),
                                   .groups = &model->groups_},
                                  model->memory_));
  TRAINYARD_TRY(EngineState(*model->engine_).load(reader));
  return model;
}

}  // namespace trainyard::engine
