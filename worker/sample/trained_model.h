#pragma once

#include <memory>

#include "worker/checkpoint/reader.h"
#include "worker/comm/communicator.h"
#include "worker/engine/engine.h"
#include "worker/hf/model_folder.h"

namespace trainyard::engine {

/// A model out of a checkpoint or a Hugging Face folder, in one process, for sampling and
/// evaluation: its weights alone, in the type that ops read.
class TrainedModel {
 public:
  /// On any machine, whatever the run's batches and instruction set were. `threads` 0: all cores.
  /// Errors: kInvalidData (configuration or tensors), kInvalidConfig, kUnavailable (memory).
  static Result<std::unique_ptr<TrainedModel>> load(checkpoint::CheckpointReader& reader,
                                                    int threads);
  /// The same of a folder's weights, with windows of `sequence_length` tokens, in fp32. Errors: as
  /// import_parameters too.
  static Result<std::unique_ptr<TrainedModel>> load(const hf::HfModel& folder,
                                                    int64_t sequence_length, int threads);

  Engine& engine() { return *engine_; }

 private:
  TrainedModel() = default;
  static Result<std::unique_ptr<TrainedModel>> create(api::EngineSpec spec, int threads);

  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Communicator> alone_;
  comm::Groups groups_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace trainyard::engine
