#include "worker/sample/trained_model.h"

#include <thread>

#include "common/api/decode.h"
#include "worker/comm/factory.h"
#include "worker/hf/export_checkpoint.h"
#include "worker/train/engine_state.h"
#include "worker/train/resolve.h"

namespace trainyard::engine {

Result<std::unique_ptr<TrainedModel>> TrainedModel::load(checkpoint::CheckpointReader& reader,
                                                         int64_t micro_sequences, int threads) {
  auto model = std::unique_ptr<TrainedModel>(new TrainedModel());
  TRAINYARD_ASSIGN(api::EngineSpec spec,
                   api::decode_engine(reader.manifest().config_json,
                                      {.file = reader.directory().string() + "/manifest.json",
                                       .unknown_keys = api::UnknownKeys::kIgnore}));
  spec.batch.micro_sequences = micro_sequences;
  Gpt2Config config = gpt2_config(spec);
  config.layer_norm_epsilon =
      hf::layer_norm_epsilon_of(reader.manifest().config_json).value_or(config.layer_norm_epsilon);
  TRAINYARD_ASSIGN(model->alone_,
                   comm::make_communicator(comm::TransportKind::kLocal,
                                           {.endpoints = {{.rank = 0}}, .job_uid = "sample"}, {}));
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  TRAINYARD_ASSIGN(model->engine_, Engine::create({.spec = spec,
                                                   .model = config,
                                                   .isa = kernel_isa(spec.runtime.isa),
                                                   .threads = threads > 0 ? threads : cores,
                                                   .data_group = model->alone_.get()},
                                                  model->memory_));
  TRAINYARD_TRY(EngineState(*model->engine_).restore(reader));
  return model;
}

}  // namespace trainyard::engine
