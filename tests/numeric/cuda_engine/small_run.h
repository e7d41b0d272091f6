#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "kernels/simt/emulation.h"
#include "kernels/simt/runtime.h"
#include "tests/support/extent.h"
#include "tests/support/fake_cublaslt.h"
#include "worker/device/cuda_device.h"
#include "worker/engine/engine.h"
#include "worker/engine/limits.h"
#include "worker/job/engine_state.h"
#include "worker/matrix/world.h"

/// A run that an emulated GPU does in seconds.
namespace trainyard::engine::testing {

inline constexpr int64_t kUnitBytes = 64 << 10;

/// Whether AddressSanitizer or the race checker watches accesses to memory, which makes a step ten
/// times as slow. Other builds compare the numbers.
inline bool is_watched() { return testing_support::kSanitized || simt::has_race_checker(); }

/// The precisions that a test of numbers runs in: watched, that which has all copies and casts.
inline std::vector<api::NumberFormat> precisions() {
  if (is_watched()) return {api::NumberFormat::kBF16};
  return {api::NumberFormat::kFP32, api::NumberFormat::kBF16};
}

/// The smallest model with all that GPT-2 has: heads of 64, rows that fill no vector, dropout,
/// clipping, decay, grains of two sequences.
inline api::EngineSpec small_spec(api::NumberFormat compute) {
  api::EngineSpec spec = matrix::prime_spec(compute);
  spec.model.hidden = 128;
  spec.model.heads = 2;
  spec.model.kv_heads = 2;
  spec.model.ffn = 136;
  spec.model.max_positions = 15;
  spec.data.sequence_length = 13;
  spec.data.tokens = {"tokens/train"};  // named in the checkpoint, never opened
  spec.batch = {.global_sequences = 7, .micro_sequences = 2};
  spec.optimizer.learning_rate = 2e-3;
  spec.device = api::DeviceKind::kCuda;
  spec.numerics.grain_sequences = 2;
  return spec;
}

/// A model of one head, in one block of attention.
inline api::EngineSpec one_head(api::EngineSpec spec) {
  spec.model.hidden = 64;
  spec.model.heads = spec.model.kv_heads = 1;
  spec.model.ffn = 72;
  return spec;
}
/// The same in a step of one micro-batch; of two, the second smaller, with three `sequences`.
inline api::EngineSpec tiny(const api::EngineSpec& of, int64_t sequences = 2) {
  api::EngineSpec spec = one_head(of);
  spec.batch.global_sequences = sequences;
  return spec;
}
/// Its sums cut as two tensor ranks cut them.
inline api::EngineSpec in_pieces(api::NumberFormat compute) {
  api::EngineSpec spec = tiny(small_spec(compute));
  spec.model.heads = spec.model.kv_heads = 2;
  spec.model.ffn = 80;
  spec.numerics.tensor_chunks = 2;
  return spec;
}
inline api::EngineSpec smaller_if_watched(const api::EngineSpec& spec) {
  return is_watched() ? tiny(spec, 3) : spec;
}

/// The same size with grouped heads, rotary positions, gates and a head of its own. In fp32 it is a
/// Llama with biases whose rotation is stretched, in bf16 a Qwen 3, whose heads have norms, with a
/// sliding window in its second block.
inline api::EngineSpec decoder_spec(api::NumberFormat compute) {
  api::EngineSpec spec = small_spec(compute);
  const bool is_qwen3 = compute == api::NumberFormat::kBF16;
  spec.model.family = is_qwen3 ? api::ModelFamily::kQwen3 : api::ModelFamily::kLlama;
  spec.model.kv_heads = 1;
  spec.model.head_dim = 64;
  spec.model.rope_theta = 500;
  spec.model.tie_embeddings = false;
  if (is_qwen3) {
    spec.model.sliding_window = 5;
    spec.model.full_layers = 1;
  } else {
    spec.model.attention_bias = true;
    spec.model.ffn_bias = true;
    api::RopeScaling& scaling = spec.model.rope_scaling.emplace();
    scaling.type = api::RopeScalingType::kYarn;
    scaling.factor = 4;
    scaling.original_positions = 8;
  }
  return spec;
}

inline std::vector<int32_t> stream_of(const api::EngineSpec& spec) {
  std::vector<int32_t> stream = matrix::make_token_stream(1024, spec.model.vocab, 99);
  for (size_t i = 5; spec.data.documents == api::Documents::kIsolate && i < stream.size(); i += 7)
    stream[i] = matrix::StreamBatches::kEndOfText;
  return stream;
}

struct Trained {
  std::string hash;
  std::vector<double> losses;
  std::vector<double> norms;  ///< of the gradients
  double held_out = 0;
};

/// Called on each rank where no collective is under way; may be empty.
struct TrainHooks {
  std::function<void()> before_steps;  ///< after the weights were gathered
  std::function<void()> after_steps;   ///< before the state and the held-out windows
};

/// From fresh weights: losses of `steps` steps, the state after them, and the loss of three
/// held-out windows. Collective over the engine's ranks.
inline Result<Trained> train_engine(Engine& engine, int64_t steps, const TrainHooks& hooks = {}) {
  const api::EngineSpec& spec = engine.spec();
  const comm::Groups& groups = engine.groups();
  const auto stream = stream_of(spec);
  TRAINYARD_TRY(engine.initialize());
  const auto call = [&engine](const std::function<void()>& hook) -> Status {
    if (!hook) return {};
    TRAINYARD_TRY(engine.settle());
    hook();
    return {};
  };
  TRAINYARD_TRY(call(hooks.before_steps));
  matrix::StreamBatches batches(stream, spec, groups.data_ranks(), groups.data_rank());
  Trained trained;
  for (int64_t step = 0; step < steps; ++step) {
    TRAINYARD_ASSIGN(const StepReport report, engine.step(batches));
    trained.losses.push_back(report.loss);
    trained.norms.push_back(report.gradient_norm);
  }
  TRAINYARD_TRY(call(hooks.after_steps));
  TRAINYARD_ASSIGN(const Hash128 hash, EngineState(engine).hash());
  trained.hash = to_hex(hash);
  api::EngineSpec evaluated = spec;
  evaluated.batch.global_sequences = 3;
  evaluated.device = api::DeviceKind::kCpu;  // held-out windows know no grains
  matrix::StreamBatches held_out(stream, evaluated, groups.data_ranks(), groups.data_rank());
  TRAINYARD_ASSIGN(const EvaluationReport evaluation,
                   engine.evaluate(held_out, 3, spec.batch.micro_sequences));
  trained.held_out = evaluation.loss;
  return trained;
}

/// `matrix`: elements of a gradient that are rounded at once, where not 0.
inline Result<std::unique_ptr<Device>> cuda_device(
    const api::EngineSpec& spec, int index = 0, int64_t matrix = 0, bool graphs = true,
    std::chrono::milliseconds deadline = kDeviceDeadline) {
  static const kernels::cuda::cublaslt::Api api = testing_support::fake_cublaslt_api();
  TRAINYARD_ASSIGN(KernelShapes shapes, kernel_shapes(spec));
  if (matrix != 0) shapes.matrix = matrix;
  return make_cuda_device(
      {.index = index, .shapes = shapes, .graphs = graphs, .deadline = deadline, .cublaslt = &api});
}

/// Every test ends with an emulation that nothing went wrong in and that is empty.
inline void begin_emulation() {
  simt::reset_emulation();
  simt::reset_call_faults();
  simt::emulation_options() = {};
  testing_support::fake_cublaslt() = {};
  testing_support::fake_cublaslt().split_k = {1};  // one plan is not measured
}
inline void expect_clean_emulation() {
  EXPECT_EQ("", simt::emulation_error());
  EXPECT_EQ("", testing_support::fake_cublaslt().complaint);
  EXPECT_EQ(0, simt::live_allocations());
  EXPECT_EQ(0, simt::live_host_allocations());
  EXPECT_EQ(0, testing_support::fake_cublaslt().live_objects);
  simt::reset_emulation();
  simt::emulation_options() = {};
}

}  // namespace trainyard::engine::testing
