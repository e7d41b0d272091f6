#pragma once

#include <memory>

#include "worker/checkpoint/reader.h"
#include "worker/comm/communicator.h"
#include "worker/engine/engine.h"

namespace trainyard::engine {

/// A model out of a checkpoint, in one process, for sampling and evaluation: its weights alone, in
/// the type that ops read.
class TrainedModel {
 public:
  /// On any machine, whatever the run's batches and instruction set were. `threads` 0: all cores.
  /// Errors: kInvalidData (configuration or tensors), kInvalidConfig, kUnavailable (memory).
  static Result<std::unique_ptr<TrainedModel>> load(checkpoint::CheckpointReader& reader,
                                                    int threads);

  Engine& engine() { return *engine_; }

 private:
  TrainedModel() = default;
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Communicator> alone_;
  comm::Groups groups_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace trainyard::engine
