#include "worker/model/decoder.h"

#include <cmath>

#include "common/api/enum_names.h"
#include "worker/model/ops/attention.h"
#include "worker/model/ops/classifier.h"
#include "worker/model/ops/embedding.h"
#include "worker/model/ops/gated.h"
#include "worker/model/ops/heads.h"
#include "worker/model/ops/linear.h"
#include "worker/model/ops/residual_dropout.h"
#include "worker/model/ops/rms_norm.h"
#include "worker/model/rope_table.h"

namespace trainyard::engine {
namespace {

/// As in GPT-2: projections back into the residual stream start smaller by 1/sqrt(2 layers).
constexpr double kWeightDeviation = 0.02;

constexpr uint64_t attention_mask_op(int64_t layer) {
  return (static_cast<uint64_t>(layer) + 1) * 16 + 1;
}

/// Rows of a parameter that Hugging Face keeps apart.
struct Part {
  const char* name;  ///< below the layer's prefix, without ".weight"
  int64_t rows;
};

class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderFamily& family, const api::ModelSpec& spec, int64_t tensor_chunks)
      : family_(family),
        spec_(spec),
        tensor_chunks_(tensor_chunks),
        heads_{.heads = spec.heads, .kv_heads = spec.kv_heads, .head_dim = api::head_dim_of(spec)},
        rope_(rope_table(spec)) {}

  Model build() {
    model_.vocab = spec_.vocab;
    model_.padded_vocab = padded_vocab(spec_.vocab);
    model_.max_positions = spec_.max_positions;
    add_embedding();
    for (int64_t layer = 0; layer < spec_.layers; ++layer)
      add_block(layer);
    add_head();
    return std::move(model_);
  }

 private:
  int add_param(ParamSpec spec) {
    spec.init_key = model_.params.size() + 1;
    model_.params.push_back(std::move(spec));
    return static_cast<int>(model_.params.size()) - 1;
  }

  int add_vector(const std::string& name, const std::string& stored, int64_t size,
                 Init::Kind kind) {
    return add_param({.tensor = {.name = name, .shape = {size}},
                      .init = {kind, 0},
                      .read = ParamRead::kFloat32,
                      .hugging_face = {{stored, size}}});
  }

  int add_norm(const std::string& name, const std::string& stored) {
    return add_vector(name, stored, spec_.hidden, Init::Kind::kOnes);
  }

  int add_table(const std::string& name, const std::string& stored) {
    return add_param({.tensor = {.name = name,
                                 .shape = {model_.padded_vocab, spec_.hidden},
                                 .cut = {.segments = {model_.padded_vocab}}},
                      .init = {Init::Kind::kNormal, kWeightDeviation},
                      .decay = DecayClass::kDecay,
                      .unpadded_rows = spec_.vocab,
                      .hugging_face = {{stored, spec_.vocab}}});
  }

  /// A weight of all parts' rows and, where there is one, their bias.
  std::vector<int> add_linear(const std::string& name, const std::string& prefix,
                              const std::vector<Part>& parts, int64_t inputs, double deviation,
                              bool has_bias, LinearCut cut) {
    ParamSpec weight{.init = {Init::Kind::kNormal, deviation}, .decay = DecayClass::kDecay};
    ParamSpec bias{.read = ParamRead::kFloat32};
    int64_t rows = 0;
    for (const Part& part : parts) {
      const std::string stored = prefix + part.name;
      weight.hugging_face.push_back({stored + ".weight", part.rows});
      bias.hugging_face.push_back({stored + ".bias", part.rows});
      rows += part.rows;
    }
    weight.tensor = {.name = name + ".weight", .shape = {rows, inputs}};
    bias.tensor = {.name = name + ".bias", .shape = {rows}};
    if (cut == LinearCut::kRow) {
      weight.tensor.cut = {.axis = 1, .segments = {inputs}};
    } else {
      for (const Part& part : parts)
        weight.tensor.cut.segments.push_back(part.rows);
      bias.tensor.cut = weight.tensor.cut;
    }
    std::vector<int> params = {add_param(std::move(weight))};
    if (has_bias) params.push_back(add_param(std::move(bias)));
    return params;
  }

  std::unique_ptr<Op> norm() const { return std::make_unique<RmsNorm>(spec_.hidden, epsilon()); }
  float epsilon() const {
    return static_cast<float>(spec_.layer_norm_epsilon.value_or(api::kLayerNormEpsilon));
  }

  /// Column cut: outputs of `segments`, each in pieces of its own.
  std::unique_ptr<Op> column_linear(int64_t inputs, const std::vector<int64_t>& segments) const {
    LinearShape shape{.inputs = inputs, .cut = LinearCut::kColumn, .segments = segments};
    for (const int64_t segment : segments) {
      for (const int64_t end : fixed_piece_ends(segment, tensor_chunks_))
        shape.piece_ends.push_back(shape.outputs + end);
      shape.outputs += segment;
    }
    return std::make_unique<Linear>(std::move(shape));
  }

  std::unique_ptr<Op> row_linear(int64_t inputs) const {
    return std::make_unique<Linear>(
        LinearShape{.inputs = inputs,
                    .outputs = spec_.hidden,
                    .cut = LinearCut::kRow,
                    .piece_ends = fixed_piece_ends(inputs, tensor_chunks_),
                    .segments = {inputs}});
  }

  Value residual() const { return {.columns = spec_.hidden, .residual = true}; }
  Value branch() const { return {.columns = spec_.hidden, .gradient_type = ValueType::kCompute}; }
  static Value compute(int64_t columns, ValueType gradient, std::vector<int64_t> segments = {}) {
    return {.columns = columns,
            .type = ValueType::kCompute,
            .gradient_type = gradient,
            .segments = std::move(segments)};
  }

  void add_embedding() {
    wte_ = add_table("wte", "model.embed_tokens.weight");
    model_.params[static_cast<size_t>(wte_)].tied = spec_.tie_embeddings;
    Layer layer{.values = {residual()}, .output = 0};
    layer.nodes.push_back(
        {.op = std::make_unique<Embedding>(spec_.hidden, 0.0F, 0, model_.padded_vocab),
         .outputs = {0},
         .params = {wte_}});
    model_.layers.push_back(std::move(layer));
  }

  /// The block as it grows: values and nodes in forward order.
  struct Block {
    Layer layer;
    int add_value(const Value& value) {
      layer.values.push_back(value);
      return static_cast<int>(layer.values.size()) - 1;
    }
    int add(std::unique_ptr<Op> op, std::vector<int> in, const Value& out,
            std::vector<int> params = {}) {
      const int value = add_value(out);
      layer.nodes.push_back({std::move(op), std::move(in), {value}, std::move(params)});
      return value;
    }
  };

  void add_block(int64_t index) {
    const std::string name = "layers." + std::to_string(index) + ".";
    const std::string stored = "model." + name;
    Block block;
    const int x = block.add_value(residual());
    const int mid = add_attention(block, index, x, name, stored);
    const int y = add_feed_forward(block, mid, name, stored);
    block.layer.input = x;
    block.layer.output = y;
    model_.layers.push_back(std::move(block.layer));
  }

  double branch_deviation() const {
    return kWeightDeviation / std::sqrt(2.0 * static_cast<double>(spec_.layers));
  }

  int add_attention(Block& block, int64_t index, int x, const std::string& name,
                    const std::string& stored) {
    const int64_t q = heads_.heads * heads_.head_dim;
    const int64_t kv = heads_.kv_heads * heads_.head_dim;
    const Value packed = compute(heads_.packed_width(), ValueType::kCompute, {q, kv, kv});
    int at = block.add(norm(), {x}, compute(spec_.hidden, ValueType::kGradient),
                       {add_norm(name + "attn_norm.weight", stored + "input_layernorm.weight")});
    at = block.add(
        column_linear(spec_.hidden, {q, kv, kv}), {at}, packed,
        add_linear(name + "attn.qkv", stored + "self_attn.",
                   {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}, spec_.hidden, kWeightDeviation,
                   family_.qkv_bias || spec_.attention_bias.value_or(false), LinearCut::kColumn));
    if (family_.head_norm) {
      std::vector<int> weights;
      for (const char* const part : {"q_norm.weight", "k_norm.weight"}) {
        weights.push_back(add_vector(name + "attn." + part, stored + "self_attn." + part,
                                     heads_.head_dim, Init::Kind::kOnes));
      }
      at = block.add(std::make_unique<HeadNorm>(heads_, epsilon()), {at}, packed, weights);
    }
    Value turned = packed;
    turned.alias_of = at;
    at = block.add(std::make_unique<Rope>(heads_, rope_), {at}, turned);
    at = block.add(std::make_unique<Attention>(AttentionShape{
                       .heads = heads_.heads,
                       .kv_heads = heads_.kv_heads,
                       .head_dim = heads_.head_dim,
                       .window = index < spec_.full_layers ? 0 : spec_.sliding_window,
                       .dropout = static_cast<float>(spec_.dropout),
                       .dropout_op = attention_mask_op(index)}),
                   {at}, compute(q, ValueType::kGradient, {q}));
    at = block.add(
        row_linear(q), {at}, branch(),
        add_linear(name + "attn.o", stored + "self_attn.", {{"o_proj", spec_.hidden}}, q,
                   branch_deviation(), spec_.attention_bias.value_or(false), LinearCut::kRow));
    return block.add(std::make_unique<ResidualDropout>(spec_.hidden, 0.0F, 0), {at, x}, residual());
  }

  int add_feed_forward(Block& block, int mid, const std::string& name, const std::string& stored) {
    const int64_t ffn = spec_.ffn;
    int at =
        block.add(norm(), {mid}, compute(spec_.hidden, ValueType::kGradient),
                  {add_norm(name + "ffn_norm.weight", stored + "post_attention_layernorm.weight")});
    at =
        block.add(column_linear(spec_.hidden, {ffn, ffn}), {at},
                  compute(2 * ffn, ValueType::kCompute, {ffn, ffn}),
                  add_linear(name + "ffn.gate_up", stored + "mlp.",
                             {{"gate_proj", ffn}, {"up_proj", ffn}}, spec_.hidden, kWeightDeviation,
                             spec_.ffn_bias.value_or(false), LinearCut::kColumn));
    at = block.add(std::make_unique<Gated>(ffn), {at}, compute(ffn, ValueType::kGradient, {ffn}));
    at =
        block.add(row_linear(ffn), {at}, branch(),
                  add_linear(name + "ffn.down", stored + "mlp.", {{"down_proj", spec_.hidden}}, ffn,
                             branch_deviation(), spec_.ffn_bias.value_or(false), LinearCut::kRow));
    return block.add(std::make_unique<ResidualDropout>(spec_.hidden, 0.0F, 0), {at, mid},
                     residual());
  }

  void add_head() {
    const int norm_weight = add_norm("norm.weight", "model.norm.weight");
    const int table = spec_.tie_embeddings ? wte_ : add_table("lm_head", "lm_head.weight");
    Layer layer{.values = {residual(), compute(spec_.hidden, ValueType::kGradient)}, .input = 0};
    layer.nodes.push_back({.op = norm(), .inputs = {0}, .outputs = {1}, .params = {norm_weight}});
    layer.nodes.push_back(
        {.op = std::make_unique<Classifier>(
             ClassifierShape{.width = spec_.hidden,
                             .vocab = spec_.vocab,
                             .padded_vocab = model_.padded_vocab,
                             .piece_ends = fixed_piece_ends(model_.padded_vocab, tensor_chunks_)}),
         .inputs = {1},
         .params = {table}});
    model_.layers.push_back(std::move(layer));
  }

  const DecoderFamily& family_;
  const api::ModelSpec& spec_;
  int64_t tensor_chunks_;
  HeadsShape heads_;
  RopeTable rope_;
  Model model_;
  int wte_ = 0;
};

Error wrong(const char* field, const std::string& found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig,
          std::string("engine.model.") + field + ": found " + found + ", wanted " + wanted};
}

Status require_positive(const char* field, int64_t value) {
  if (value >= 1) return {};
  return wrong(field, std::to_string(value), "at least 1");
}

}  // namespace

Result<Model> build_decoder(const DecoderFamily& family, const api::ModelSpec& spec,
                            int64_t tensor_chunks) {
  TRAINYARD_TRY(require_positive("layers", spec.layers));
  TRAINYARD_TRY(require_positive("hidden", spec.hidden));
  TRAINYARD_TRY(require_positive("heads", spec.heads));
  TRAINYARD_TRY(require_positive("kvHeads", spec.kv_heads));
  TRAINYARD_TRY(require_positive("ffn", spec.ffn));
  TRAINYARD_TRY(require_positive("vocab", spec.vocab));
  TRAINYARD_TRY(require_positive("maxPositions", spec.max_positions));
  if (spec.heads % spec.kv_heads != 0) {
    return wrong("kvHeads", std::to_string(spec.kv_heads),
                 "a divisor of heads = " + std::to_string(spec.heads));
  }
  const int64_t head_dim = api::head_dim_of(spec);
  if (head_dim < 2 || head_dim % 2 != 0) {
    return wrong("headDim", std::to_string(head_dim), "an even number, as features turn in pairs");
  }
  if (spec.attention_bias.value_or(false) && !family.has_attention_bias) {
    return wrong("attentionBias", "true",
                 "false under family " + std::string(api::name_of(spec.family)));
  }
  if (spec.ffn_bias.value_or(false) && !family.has_ffn_bias) {
    return wrong("ffnBias", "true", "false under family " + std::string(api::name_of(spec.family)));
  }
  if (spec.sliding_window != 0 && (spec.sliding_window < 0 || !family.has_window)) {
    return wrong("slidingWindow", std::to_string(spec.sliding_window),
                 family.has_window
                     ? "at least 1, or nothing"
                     : "nothing under family " + std::string(api::name_of(spec.family)));
  }
  if (spec.full_layers < 0 || spec.full_layers > (family.asks_for_window ? spec.layers : 0)) {
    return wrong("fullLayers", std::to_string(spec.full_layers),
                 family.asks_for_window
                     ? "0 to layers = " + std::to_string(spec.layers)
                     : "0 under family " + std::string(api::name_of(spec.family)));
  }
  if (!(spec.dropout >= 0 && spec.dropout < 1)) {
    return wrong("dropout", std::to_string(spec.dropout), "0 <= dropout < 1");
  }
  return DecoderBuilder(family, spec, tensor_chunks).build();
}

}  // namespace trainyard::engine
