#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// `engine` of a TrainingJob: one run of the built-in training engine. Plain values; decoding
/// (common/api/decode.h) fills presets and defaults in, so that a decoded EngineSpec is what runs.
/// Every field is described for users in common/api/engine_fields.h, from which the reference page
/// is made.
namespace trainyard::api {

/// What the model is trained for.
enum class Task { kCausalLM, kSequenceClassification, kMaskedLM };

/// The architecture.
enum class ModelFamily { kGPT2, kLlama, kQwen2, kQwen3, kMistral, kBert, kMixtral };

/// How rotary positions are stretched over more than a model was first trained on.
enum class RopeScalingType { kLinear, kLlama3, kYarn };

/// What tokens of a window see of the other documents in it.
enum class Documents { kJoin, kIsolate };

/// The update rule.
enum class OptimizerName { kAdamW };

/// The shape of the learning rate after warm-up.
enum class ScheduleName { kCosine, kLinear, kConstant, kWSD };

/// A number format of the precision section.
enum class NumberFormat { kFP32, kBF16, kFP16, kFP8 };

/// How ranks divide the work.
enum class ParallelMode { kDistributed, kDataParallel };

/// Order of forward and backward passes in a pipeline.
enum class PipelineSchedule { kNaive, kGPipe, kOneFOneB, kInterleaved, kZeroBubbleH1, kPipeDream };

/// Which activations are computed again in the backward pass.
enum class Recompute { kNone, kSelective, kFull };

/// How a sequence is divided over a context group.
enum class ContextMode { kUlysses, kRing };

/// What is kept in host memory between its uses.
enum class Offload { kOptimizer, kParameters, kActivations };

/// What a run takes from the checkpoint of another run.
enum class StartWhat { kState, kWeights };

/// Which sums are exact; see docs/concepts/canonical-numerics.md.
enum class NumericsMode { kAuto, kCanonical, kFast };

/// What ranks compute on.
enum class DeviceKind { kAuto, kCpu, kCuda };

/// How ranks exchange gradients.
enum class Transport { kAuto, kLocal, kShm, kTcp, kNccl };

/// CPU instruction set of the kernels.
enum class Isa { kAuto, kAmx, kAvx512Bf16, kAvx512, kAvx2, kGeneric };

/// What becomes of a job whose memory plan does not fit.
enum class MemoryCheck { kRefuse, kWarn };

/// Of every GPT-2 that OpenAI published (Radford et al. 2019).
inline constexpr double kLayerNormEpsilon = 1e-5;

/// Base of rotary positions where none is given (Su et al. 2021).
inline constexpr double kRopeTheta = 10000;

/// The members of transformers' rope_parameters.
struct RopeScaling {
  RopeScalingType type = RopeScalingType::kLinear;
  double factor = 1;
  double low_frequency_factor = 1;         ///< Llama3
  double high_frequency_factor = 4;        ///< Llama3
  int64_t original_positions = 0;          ///< Llama3, Yarn
  double beta_fast = 32;                   ///< Yarn
  double beta_slow = 1;                    ///< Yarn
  std::optional<double> attention_factor;  ///< Yarn; of the factor when not given
  bool truncate = true;                    ///< Yarn

  bool operator==(const RopeScaling&) const = default;
};

/// The model's shape. After decoding, a preset's values and derived ones (kvHeads, ffn) are filled
/// in; 0 remains only where the shape comes from elsewhere: every size when `import_path` is set
/// (the worker reads config.json), and `vocab` when it is to come from the token shards.
struct ModelSpec {
  std::string preset;  ///< empty: none
  ModelFamily family = ModelFamily::kGPT2;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  ///< heads when not given
  int64_t head_dim = 0;  ///< 0: hidden / heads; see head_dim_of()
  int64_t ffn = 0;       ///< 4 x hidden when not given, 8/3 of it where gated
  /// 0: the worker takes the vocabulary size that the headers of the
  /// token shards state.
  int64_t vocab = 0;
  int64_t max_positions = 0;  ///< data.sequenceLength when not given
  bool tie_embeddings = true;
  double dropout = 0.0;
  std::optional<bool> attention_bias;  ///< of all four projections
  std::optional<bool> ffn_bias;
  std::optional<double> rope_theta;  ///< kRopeTheta when not given
  std::optional<RopeScaling> rope_scaling;
  int64_t sliding_window = 0;  ///< keys that a query sees, its own included; 0: no bound
  int64_t full_layers = 0;     ///< blocks, from the first on, without the window
  std::optional<double> layer_norm_epsilon;  ///< the import's or kLayerNormEpsilon when not given
  std::string import_path;  ///< `import`: a Hugging Face folder; empty: fresh weights

  bool operator==(const ModelSpec&) const = default;
};

/// Features of a head; heads > 0.
constexpr int64_t head_dim_of(const ModelSpec& model) {
  return model.head_dim > 0 ? model.head_dim : model.hidden / model.heads;
}

struct DataSpec {
  std::vector<std::string> tokens;      ///< token shards, training
  std::vector<std::string> validation;  ///< token shards, held out; empty: no evaluation
  /// Tokens of a sample. maxPositions when not given; 0 only while both are to come from an import.
  int64_t sequence_length = 0;
  Documents documents = Documents::kJoin;
  std::string tokenizer;  ///< for sampling alone: tokenizer folder or file; empty: none

  bool operator==(const DataSpec&) const = default;
};

struct BatchSpec {
  int64_t global_sequences = 0;  ///< required
  int64_t micro_sequences = 1;

  bool operator==(const BatchSpec&) const = default;
};

struct OptimizerSpec {
  OptimizerName name = OptimizerName::kAdamW;
  double learning_rate = 6.0e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double epsilon = 1.0e-8;
  double weight_decay = 0.1;
  double gradient_clip = 1.0;  ///< global norm; 0: off

  bool operator==(const OptimizerSpec&) const = default;
};

struct LearningRateSchedule {
  ScheduleName name = ScheduleName::kCosine;
  int64_t warmup_steps = 0;
  int64_t horizon_steps = 0;  ///< steps that the shape spans; 0: those of the run
  double min_ratio = 0.1;     ///< last learning rate over the peak

  bool operator==(const LearningRateSchedule&) const = default;
};

struct PrecisionSpec {
  NumberFormat compute = NumberFormat::kFP32;
  NumberFormat master = NumberFormat::kFP32;
  std::optional<double> loss_scale;    ///< 0: Dynamic; only with FP16
  std::optional<NumberFormat> reduce;  ///< only with Fast numerics

  bool operator==(const PrecisionSpec&) const = default;
};

struct ParallelismSpec {
  ParallelMode mode = ParallelMode::kDistributed;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t context = 1;
  int64_t expert = 1;
  int64_t shard = 0;  ///< fsdp size; 0: all data-parallel ranks
  int64_t zero_stage = 1;
  PipelineSchedule pipeline_schedule = PipelineSchedule::kOneFOneB;
  int64_t chunks_per_stage = 1;
  std::vector<int64_t> stages;  ///< blocks of each stage; empty: cut by cost
  Recompute recompute = Recompute::kNone;
  bool sequence_parallel = false;
  ContextMode context_mode = ContextMode::kUlysses;
  std::vector<int64_t> ring_order;
  std::vector<Offload> offload;

  /// Ranks that hold one copy of the model together, with all of its states unsharded.
  int64_t model_ranks() const { return tensor * pipeline * context; }
  /// Whether ranks share sequences by ring attention.
  bool in_ring() const { return context > 1 && context_mode == ContextMode::kRing; }
  bool operator==(const ParallelismSpec&) const = default;
};

struct NumericsSpec {
  NumericsMode mode = NumericsMode::kAuto;
  int64_t grain_tokens = 0;  ///< 0: the checkpoint's, else a default (common/api/numerics.h)
  int64_t key_block = 0;     ///< the same
  std::optional<int64_t> tensor_chunks;  ///< the same where it is not given; 0: sums are not cut
  /// On GPUs, in place of grain_tokens: sequences whose weight gradients are one partial of an
  /// exact sum. 0: the checkpoint's, else batch.microSequences.
  int64_t grain_sequences = 0;

  bool operator==(const NumericsSpec&) const = default;
};

/// Not part of the configuration hash: may change at any restart without changing any bit.
struct RuntimeSpec {
  int64_t threads = 0;  ///< per rank; 0: cores / ranks of the node
  Transport transport = Transport::kAuto;
  Isa isa = Isa::kAuto;
  MemoryCheck memory_check = MemoryCheck::kRefuse;

  bool operator==(const RuntimeSpec&) const = default;
};

struct EvaluationSpec {
  int64_t every_steps = 200;  ///< 0: only after the last step
  int64_t sequences = 64;
  int64_t early_stop_patience = 0;  ///< evaluations without improvement; 0: off
  double early_stop_delta = 0;      ///< what a loss must be lower by to be an improvement

  bool operator==(const EvaluationSpec&) const = default;
};

/// Where a run without checkpoints of its own begins.
struct StartFrom {
  std::string checkpoint;  ///< a checkpoint's directory
  StartWhat what = StartWhat::kState;

  bool operator==(const StartFrom&) const = default;
};

struct ExportSpec {
  std::string hugging_face;  ///< folder written at the end; empty: none

  bool operator==(const ExportSpec&) const = default;
};

/// A run of the built-in engine.
struct EngineSpec {
  Task task = Task::kCausalLM;
  ModelSpec model;
  DataSpec data;
  BatchSpec batch;
  int64_t steps = 0;  ///< required
  std::optional<StartFrom> start_from;
  OptimizerSpec optimizer;
  LearningRateSchedule learning_rate_schedule;
  PrecisionSpec precision;
  ParallelismSpec parallelism;
  NumericsSpec numerics;
  DeviceKind device = DeviceKind::kAuto;
  int64_t seed = 1234;
  RuntimeSpec runtime;
  EvaluationSpec evaluation;
  ExportSpec export_to;  ///< `export`

  bool operator==(const EngineSpec&) const = default;
};

/// Steps that the learning rate's shape spans.
constexpr int64_t horizon_of(const EngineSpec& engine) {
  const int64_t horizon = engine.learning_rate_schedule.horizon_steps;
  return horizon > 0 ? horizon : engine.steps;
}

}  // namespace trainyard::api
