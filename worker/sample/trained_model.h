#pragma once

#include <memory>

#include "worker/checkpoint/reader.h"
#include "worker/comm/communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/engine/engine.h"
#include "worker/hf/model_folder.h"

namespace trainyard::engine {

/// What computes a trained model.
struct InferenceOptions {
  int threads = 0;  ///< of the host; 0: all cores
  /// Auto: the first GPU, where the program has CUDA and the GPU's kernels take the model.
  api::DeviceKind device = api::DeviceKind::kCpu;
  const CudaSupport* cuda = nullptr;  ///< null: the program has no CUDA
  int64_t micro_sequences = 1;        ///< at most, of evaluate()
  bool samples = true;                ///< next_logits() is called, too
};

/// A model out of a checkpoint or a Hugging Face folder, in one process, for sampling and
/// evaluation: its weights alone, in the type that ops read.
class TrainedModel {
 public:
  /// On any machine, whatever the run's batches, device and instruction set were. Errors:
  /// kInvalidData (configuration or tensors), kInvalidConfig, kUnavailable (memory); those of
  /// resolve_device() and make_cuda_device().
  static Result<std::unique_ptr<TrainedModel>> load(checkpoint::CheckpointReader& reader,
                                                    const InferenceOptions& options);
  /// The same of a folder's weights, with windows of `sequence_length` tokens, in fp32. Errors: as
  /// import_parameters too.
  static Result<std::unique_ptr<TrainedModel>> load(const hf::HfModel& folder,
                                                    int64_t sequence_length,
                                                    const InferenceOptions& options);

  ~TrainedModel();
  TrainedModel(const TrainedModel&) = delete;
  TrainedModel& operator=(const TrainedModel&) = delete;

  Engine& engine() { return *engine_; }

 private:
  TrainedModel() = default;
  static Result<std::unique_ptr<TrainedModel>> create(api::EngineSpec spec,
                                                      const InferenceOptions& options);

  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Communicator> alone_;
  comm::Groups groups_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace trainyard::engine
