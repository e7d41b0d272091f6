#include "worker/train/resolve.h"

#include "common/text/json_writer.h"
#include "kernels/cpu/cpu_kernel_set.h"
#include "kernels/cpu/cpu_limits.h"

namespace trainyard::engine {
namespace {

/// A step program lists every micro-batch; this bounds it and the time to plan it.
constexpr int64_t kMicroBatchesMax = 4096;

Error contradiction(const char* field, const std::string& found, const char* source,
                    const std::string& says) {
  return {ErrorCode::kInvalidConfig, std::string(field) + ": found " + found + ", but " + source +
                                         " says " + says + "; leave the field out"};
}

/// Takes `imported` where the manifest is silent (0); refuses a contradiction.
Status take(const char* field, int64_t& value, int64_t imported, const char* source) {
  if (value != 0 && value != imported) {
    return contradiction(field, std::to_string(value), source, std::to_string(imported));
  }
  value = imported;
  return {};
}

Status take_import(api::ModelSpec& model, const api::ModelSpec& from) {
  const char* source = "the imported model";
  TRAINYARD_TRY(take("engine.model.layers", model.layers, from.layers, source));
  TRAINYARD_TRY(take("engine.model.hidden", model.hidden, from.hidden, source));
  TRAINYARD_TRY(take("engine.model.heads", model.heads, from.heads, source));
  TRAINYARD_TRY(take("engine.model.ffn", model.ffn, from.ffn, source));
  TRAINYARD_TRY(take("engine.model.vocab", model.vocab, from.vocab, source));
  model.kv_heads = from.kv_heads;
  model.family = from.family;
  const double epsilon = from.layer_norm_epsilon.value_or(api::kLayerNormEpsilon);
  if (model.layer_norm_epsilon.value_or(epsilon) != epsilon) {
    return contradiction("engine.model.layerNormEpsilon", text::shortest(*model.layer_norm_epsilon),
                         source, text::shortest(epsilon));
  }
  model.layer_norm_epsilon = epsilon;
  if (model.max_positions == 0) model.max_positions = from.max_positions;
  return take("engine.model.maxPositions", model.max_positions, from.max_positions, source);
}

Error beyond(const char* field, int64_t found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig,
          std::string(field) + ": found " + std::to_string(found) + ", wanted " + wanted};
}

}  // namespace

Status resolve_spec(api::EngineSpec& spec, const data::TokenSet& tokens,
                    const std::optional<api::ModelSpec>& imported) {
  const bool is_given = spec.model.vocab != 0 || imported;
  if (!is_given) spec.model.vocab = tokens.vocabulary();
  TRAINYARD_TRY(resolve_spec(spec, imported));
  if (tokens.vocabulary() > spec.model.vocab) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.model.vocab: found " + std::to_string(spec.model.vocab) +
                     ", wanted at least the " + std::to_string(tokens.vocabulary()) +
                     " of the token shards (" + tokens.tokenizer() + ")"};
  }
  return {};
}

Status resolve_spec(api::EngineSpec& spec, const std::optional<api::ModelSpec>& imported) {
  if (imported) TRAINYARD_TRY(take_import(spec.model, *imported));
  if (!spec.model.layer_norm_epsilon) spec.model.layer_norm_epsilon = api::kLayerNormEpsilon;
  if (spec.data.sequence_length == 0) spec.data.sequence_length = spec.model.max_positions;
  if (spec.model.max_positions == 0) spec.model.max_positions = spec.data.sequence_length;
  if (spec.data.sequence_length > spec.model.max_positions) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.data.sequenceLength: found " + std::to_string(spec.data.sequence_length) +
                     ", wanted at most maxPositions = " + std::to_string(spec.model.max_positions)};
  }
  if (spec.numerics.mode == api::NumericsMode::kAuto) {
    spec.numerics.mode = api::NumericsMode::kCanonical;
  }
  return {};
}

Status check_held_out(const data::TokenSet& held_out, const data::TokenSet* training, int64_t vocab,
                      const std::string& what) {
  if (held_out.vocabulary() > vocab) {
    return Error{ErrorCode::kInvalidConfig,
                 what + ": found shards of " + std::to_string(held_out.vocabulary()) + " tokens (" +
                     held_out.tokenizer() + "), wanted at most the " + std::to_string(vocab) +
                     " of the model; prepare them with the tokenizer of the training tokens"};
  }
  if (training != nullptr && held_out.tokenizer_hash() != training->tokenizer_hash()) {
    return Error{ErrorCode::kInvalidConfig,
                 what + ": found tokens of tokenizer " + held_out.tokenizer() + " (" +
                     to_hex(held_out.tokenizer_hash()) + "), wanted " + training->tokenizer() +
                     " (" + to_hex(training->tokenizer_hash()) +
                     ") as in engine.data.tokens; prepare both sets alike"};
  }
  return {};
}

Status check_kernel_limits(const api::EngineSpec& spec) {
  if (spec.model.heads < 1) return {};  // build_model says so
  const int64_t head = spec.model.hidden / spec.model.heads;
  const int64_t padded_head = (head + 15) / 16 * 16;
  if (spec.numerics.grain_tokens > kernels::kMaxKeyBlock) {
    return beyond("engine.numerics.grainTokens", spec.numerics.grain_tokens,
                  "at most " + std::to_string(kernels::kMaxKeyBlock));
  }
  if (head > kernels::kMaxHeadDim) {
    return beyond("engine.model.heads", spec.model.heads,
                  "heads of at most " + std::to_string(kernels::kMaxHeadDim) + " features, not " +
                      std::to_string(head));
  }
  if (spec.precision.compute == api::NumberFormat::kBF16 && head % 2 != 0) {
    // A bf16 product takes two elements at a time, and a head is summed over by itself.
    return beyond(
        "engine.model.heads", spec.model.heads,
        "an even hidden / heads under precision.compute BF16, not " + std::to_string(head));
  }
  if (spec.data.sequence_length * padded_head > kernels::kMaxAttentionElements) {
    return beyond("engine.data.sequenceLength", spec.data.sequence_length,
                  "at most " + std::to_string(kernels::kMaxAttentionElements / padded_head) +
                      " with heads of " + std::to_string(head) + " features");
  }
  return {};
}

Status check_batch(const api::BatchSpec& batch, int64_t ranks) {
  if (ranks > batch.global_sequences) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.batch.globalSequences: found " + std::to_string(batch.global_sequences) +
                     ", wanted at least the " + std::to_string(ranks) +
                     " data-parallel ranks; use fewer ranks or a larger batch"};
  }
  const int64_t share = (batch.global_sequences + ranks - 1) / ranks;  // the largest
  const int64_t micro_batches = (share + batch.micro_sequences - 1) / batch.micro_sequences;
  if (micro_batches > kMicroBatchesMax) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.batch.globalSequences: found " + std::to_string(batch.global_sequences) +
                     " in micro-batches of " + std::to_string(batch.micro_sequences) + " on " +
                     std::to_string(ranks) + " ranks, wanted at most " +
                     std::to_string(kMicroBatchesMax) + " micro-batches a rank"};
  }
  return {};
}

kernels::Isa kernel_isa(api::Isa isa) {
  switch (isa) {
    case api::Isa::kAmx:
      return kernels::Isa::kAmx;
    case api::Isa::kAvx512:
      return kernels::Isa::kAvx512;
    case api::Isa::kAvx2:
      return kernels::Isa::kAvx2;
    case api::Isa::kGeneric:
      return kernels::Isa::kGeneric;
    case api::Isa::kAuto:
      break;
  }
  return kernels::best_isa();
}

}  // namespace trainyard::engine
