#include "worker/sample/trained_model.h"

#include <algorithm>
#include <utility>

#include "common/api/numerics.h"
#include "common/io/control_group.h"
#include "worker/comm/factory.h"
#include "worker/device/cpu_device.h"
#include "worker/device/device_choice.h"
#include "worker/engine/limits.h"
#include "worker/hf/run_facts.h"
#include "worker/job/engine_state.h"
#include "worker/job/import_export.h"

namespace trainyard::engine {
namespace {

/// `spec` on the device that the options come to.
Result<api::EngineSpec> on_device(api::EngineSpec spec, const InferenceOptions& options) {
  TRAINYARD_ASSIGN(spec.device, resolve_device(options.device, 0, options.cuda));
  if (spec.device == api::DeviceKind::kCpu) return spec;
  api::EngineSpec on_gpu = spec;
  on_gpu.numerics = api::moved_to(spec.numerics, spec.device);
  const Status fits = check_kernel_limits(on_gpu, limits_of(spec.device), /*trains=*/false);
  if (fits) return on_gpu;
  if (options.device != api::DeviceKind::kAuto) return fits.error();
  spec.device = api::DeviceKind::kCpu;
  return spec;
}

int threads_of(const InferenceOptions& options) {
  return options.threads > 0 ? options.threads : usable_cpus();
}

Result<std::unique_ptr<Device>> make_gpu(const api::EngineSpec& spec,
                                         const InferenceOptions& options) {
  TRAINYARD_ASSIGN(KernelShapes shapes, kernel_shapes(spec));
  if (options.samples) {  // prompts of an imported model may be longer than its run's sequences
    shapes.rows = std::max(shapes.rows, spec.model.max_positions);
    if (shapes.rotary_positions > 0) shapes.rotary_positions = spec.model.max_positions;
  }
  shapes.library_attention = 0;  // its scratch is for backward passes
  return options.cuda->make({.host_threads = threads_of(options),
                             .shapes = shapes,
                             .graphs = false,
                             .measures = !options.samples});  // each prompt has another length
}

}  // namespace

TrainedModel::~TrainedModel() {
  if (device_ == nullptr || !device_->is_stuck()) return;
  // Memory of a GPU whose kernel hangs cannot be freed: that waits for the kernel.
  (void)engine_.release();
  (void)device_.release();
  (void)alone_.release();
}

Result<std::unique_ptr<TrainedModel>> TrainedModel::create(api::EngineSpec spec,
                                                           const InferenceOptions& options) {
  auto model = std::unique_ptr<TrainedModel>(new TrainedModel());
  // Only the run's model matters: its batches may be more than one process takes, and its
  // instruction set, which changes no bit, one that this machine lacks.
  spec.batch = {.global_sequences = options.micro_sequences,
                .micro_sequences = options.micro_sequences};
  spec.parallelism = {};
  TRAINYARD_ASSIGN(spec, on_device(std::move(spec), options));
  TRAINYARD_ASSIGN(model->alone_,
                   comm::make_communicator(comm::TransportKind::kLocal,
                                           {.endpoints = {{.rank = 0}}, .job_uid = "sample"}, {}));
  model->groups_ = comm::Groups::of_data_ranks(*model->alone_);
  // Ranks of a ring may have trained on longer ones.
  spec.data.sequence_length =
      std::min(spec.data.sequence_length, attended_positions(spec.model, limits_of(spec.device)));
  if (spec.device == api::DeviceKind::kCuda) {
    TRAINYARD_ASSIGN(model->device_, make_gpu(spec, options));
  } else {
    TRAINYARD_ASSIGN(model->device_,
                     make_cpu_device({.isa = kernels::isa_or_best(kernel_isa(spec.runtime.isa)),
                                      .threads = threads_of(options)}));
  }
  TRAINYARD_ASSIGN(model->engine_, Engine::create({.spec = spec,
                                                   .device = model->device_.get(),
                                                   .groups = &model->groups_,
                                                   .purpose = Purpose::kInfer}));
  return model;
}

Result<std::unique_ptr<TrainedModel>> TrainedModel::load(checkpoint::CheckpointReader& reader,
                                                         const InferenceOptions& options) {
  TRAINYARD_ASSIGN(api::EngineSpec spec, hf::spec_of_run(reader));
  TRAINYARD_ASSIGN(auto model, create(std::move(spec), options));
  TRAINYARD_TRY(EngineState(*model->engine_).load(reader));
  return model;
}

Result<std::unique_ptr<TrainedModel>> TrainedModel::load(const hf::HfModel& folder,
                                                         int64_t sequence_length,
                                                         const InferenceOptions& options) {
  api::EngineSpec spec{.model = folder.spec()};
  spec.data.sequence_length = sequence_length;
  TRAINYARD_ASSIGN(auto model, create(std::move(spec), options));
  TRAINYARD_TRY(import_parameters(folder, *model->engine_));
  return model;
}

}  // namespace trainyard::engine
