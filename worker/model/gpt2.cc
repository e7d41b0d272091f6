#include "worker/model/gpt2.h"

#include <cmath>

#include "worker/model/ops/attention.h"
#include "worker/model/ops/classifier.h"
#include "worker/model/ops/embedding.h"
#include "worker/model/ops/gelu.h"
#include "worker/model/ops/layer_norm.h"
#include "worker/model/ops/linear.h"
#include "worker/model/ops/residual_dropout.h"

namespace trainyard::engine {
namespace {

/// Initial standard deviation of weights; residual projections are scaled by 1/sqrt(2 layers)
/// (Radford et al. 2019, section 2.3).
constexpr double kInitStandardDeviation = 0.02;

/// Dropout ops are keyed by layer and place so that masks do not depend on build order.
enum DropoutPlace : uint64_t { kAttentionMask = 1, kAttentionBranch = 2, kFfnBranch = 3 };
constexpr uint64_t dropout_op(int64_t layer, DropoutPlace place) {
  return (static_cast<uint64_t>(layer) + 1) * 16 + place;
}
constexpr uint64_t kEmbeddingDropoutOp = 1;

class Gpt2Builder {
 public:
  Gpt2Builder(const api::ModelSpec& spec, int64_t tensor_chunks)
      : spec_(spec), tensor_chunks_(tensor_chunks) {}

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
    spec.hugging_face = {{"transformer." + spec.tensor.name, spec.tensor.shape[0]}};
    model_.params.push_back(std::move(spec));
    return static_cast<int>(model_.params.size()) - 1;
  }

  int add_matrix(const std::string& name, std::vector<int64_t> shape, double deviation) {
    return add_param({.tensor = {.name = name, .shape = std::move(shape)},
                      .init = {Init::Kind::kNormal, deviation},
                      .decay = DecayClass::kDecay});
  }

  int add_vector(const std::string& name, int64_t size, Init::Kind kind) {
    return add_param({.tensor = {.name = name, .shape = {size}},
                      .init = {kind, 0},
                      .read = ParamRead::kFloat32});
  }

  /// A weight [outputs, inputs] and its bias.
  std::vector<int> add_linear(const std::string& name, int64_t outputs, int64_t inputs,
                              double deviation, LinearCut cut, int64_t segments = 1) {
    const int weight = add_matrix(name + ".weight", {outputs, inputs}, deviation);
    // Conv1D keeps [inputs, outputs].
    model_.params[static_cast<size_t>(weight)].hugging_face_transposed = true;
    const int bias = add_vector(name + ".bias", outputs, Init::Kind::kZeros);
    if (cut == LinearCut::kRow) {
      cut_of(weight) = {.axis = 1, .segments = {inputs}};
    } else {
      cut_of(weight) = cut_of(bias) = {.segments = equal_segments(outputs, segments)};
    }
    return {weight, bias};
  }
  layout::TensorCut& cut_of(int param) {
    return model_.params[static_cast<size_t>(param)].tensor.cut;
  }
  static std::vector<int64_t> equal_segments(int64_t length, int64_t segments) {
    return std::vector<int64_t>(static_cast<size_t>(segments), length / segments);
  }

  std::vector<int> add_norm(const std::string& name) {
    const int weight = add_vector(name + ".weight", spec_.hidden, Init::Kind::kOnes);
    return {weight, add_vector(name + ".bias", spec_.hidden, Init::Kind::kZeros)};
  }

  std::unique_ptr<Op> norm() const {
    return std::make_unique<LayerNorm>(
        spec_.hidden,
        static_cast<float>(spec_.layer_norm_epsilon.value_or(api::kLayerNormEpsilon)));
  }

  std::unique_ptr<Op> linear(int64_t outputs, int64_t inputs, LinearCut cut,
                             int64_t segments = 1) const {
    const int64_t length = cut == LinearCut::kColumn ? outputs : inputs;
    return std::make_unique<Linear>(
        LinearShape{.inputs = inputs,
                    .outputs = outputs,
                    .cut = cut,
                    .piece_ends = fixed_piece_ends(length, tensor_chunks_, segments),
                    .segments = equal_segments(length, segments)});
  }

  Value residual() const { return {.columns = spec_.hidden, .residual = true}; }
  static Value compute(int64_t columns, ValueType gradient, int64_t segments = 0) {
    return {.columns = columns,
            .type = ValueType::kCompute,
            .gradient_type = gradient,
            .segments = segments == 0 ? std::vector<int64_t>() : equal_segments(columns, segments)};
  }

  void add_embedding() {
    wte_ = add_matrix("wte", {model_.padded_vocab, spec_.hidden}, kInitStandardDeviation);
    ParamSpec& wte = model_.params[static_cast<size_t>(wte_)];
    wte.unpadded_rows = spec_.vocab;
    wte.tied = true;
    wte.tensor.cut = {.segments = {model_.padded_vocab}};
    wte.hugging_face = {{"transformer.wte.weight", spec_.vocab}};
    const int wpe = add_matrix("wpe", {spec_.max_positions, spec_.hidden}, kInitStandardDeviation);
    model_.params[static_cast<size_t>(wpe)].hugging_face[0].name = "transformer.wpe.weight";
    Layer layer{.values = {residual()}, .output = 0};
    layer.nodes.push_back(
        {.op = std::make_unique<Embedding>(spec_.hidden, static_cast<float>(spec_.dropout),
                                           kEmbeddingDropoutOp, model_.padded_vocab),
         .outputs = {0},
         .params = {wte_, wpe}});
    model_.layers.push_back(std::move(layer));
  }

  void add_block(int64_t index) {
    const std::string prefix = "h." + std::to_string(index) + ".";
    const int64_t hidden = spec_.hidden;
    const int64_t ffn = spec_.ffn;
    const double branch =
        kInitStandardDeviation / std::sqrt(2.0 * static_cast<double>(spec_.layers));
    const auto rate = static_cast<float>(spec_.dropout);
    enum : int { kX, kNorm1, kQkv, kHeads, kBranch1, kMid, kNorm2, kUp, kActivated, kBranch2, kY };
    Layer layer{.input = kX, .output = kY};
    layer.values = {residual(),
                    compute(hidden, ValueType::kGradient),
                    compute(3 * hidden, ValueType::kCompute, 3),
                    compute(hidden, ValueType::kGradient, 1),
                    {.columns = hidden, .gradient_type = ValueType::kCompute},
                    residual(),
                    compute(hidden, ValueType::kGradient),
                    compute(ffn, ValueType::kCompute, 1),
                    compute(ffn, ValueType::kGradient, 1),
                    {.columns = hidden, .gradient_type = ValueType::kCompute},
                    residual()};
    auto add = [&](std::unique_ptr<Op> op, std::vector<int> in, int out, std::vector<int> params) {
      layer.nodes.push_back({std::move(op), std::move(in), {out}, std::move(params)});
    };
    add(norm(), {kX}, kNorm1, add_norm(prefix + "ln_1"));
    add(linear(3 * hidden, hidden, LinearCut::kColumn, 3), {kNorm1}, kQkv,
        add_linear(prefix + "attn.c_attn", 3 * hidden, hidden, kInitStandardDeviation,
                   LinearCut::kColumn, 3));
    add(std::make_unique<Attention>(
            AttentionShape{.heads = spec_.heads,
                           .kv_heads = spec_.heads,
                           .head_dim = hidden / spec_.heads,
                           .dropout = rate,
                           .dropout_op = dropout_op(index, kAttentionMask)}),
        {kQkv}, kHeads, {});
    add(linear(hidden, hidden, LinearCut::kRow), {kHeads}, kBranch1,
        add_linear(prefix + "attn.c_proj", hidden, hidden, branch, LinearCut::kRow));
    add(std::make_unique<ResidualDropout>(hidden, rate, dropout_op(index, kAttentionBranch)),
        {kBranch1, kX}, kMid, {});
    add(norm(), {kMid}, kNorm2, add_norm(prefix + "ln_2"));
    add(linear(ffn, hidden, LinearCut::kColumn), {kNorm2}, kUp,
        add_linear(prefix + "mlp.c_fc", ffn, hidden, kInitStandardDeviation, LinearCut::kColumn));
    add(std::make_unique<Gelu>(ffn), {kUp}, kActivated, {});
    add(linear(hidden, ffn, LinearCut::kRow), {kActivated}, kBranch2,
        add_linear(prefix + "mlp.c_proj", hidden, ffn, branch, LinearCut::kRow));
    add(std::make_unique<ResidualDropout>(hidden, rate, dropout_op(index, kFfnBranch)),
        {kBranch2, kMid}, kY, {});
    model_.layers.push_back(std::move(layer));
  }

  void add_head() {
    Layer layer{.values = {residual(), compute(spec_.hidden, ValueType::kGradient)}, .input = 0};
    layer.nodes.push_back(
        {.op = norm(), .inputs = {0}, .outputs = {1}, .params = add_norm("ln_f")});
    layer.nodes.push_back(
        {.op = std::make_unique<Classifier>(
             ClassifierShape{.width = spec_.hidden,
                             .vocab = spec_.vocab,
                             .padded_vocab = model_.padded_vocab,
                             .piece_ends = fixed_piece_ends(model_.padded_vocab, tensor_chunks_)}),
         .inputs = {1},
         .params = {wte_}});
    model_.layers.push_back(std::move(layer));
  }

  const api::ModelSpec& spec_;
  int64_t tensor_chunks_;
  Model model_;
  int wte_ = 0;
};

Status check_size(const char* field, int64_t value) {
  if (value >= 1) return {};
  return Error{ErrorCode::kInvalidConfig, std::string("engine.model.") + field + ": found " +
                                              std::to_string(value) + ", wanted at least 1"};
}

}  // namespace

Result<Model> build_gpt2(const api::ModelSpec& spec, int64_t tensor_chunks) {
  TRAINYARD_TRY(check_size("layers", spec.layers));
  TRAINYARD_TRY(check_size("hidden", spec.hidden));
  TRAINYARD_TRY(check_size("heads", spec.heads));
  TRAINYARD_TRY(check_size("ffn", spec.ffn));
  TRAINYARD_TRY(check_size("vocab", spec.vocab));
  TRAINYARD_TRY(check_size("maxPositions", spec.max_positions));
  if (spec.hidden % spec.heads != 0) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.model.heads: found " + std::to_string(spec.heads) +
                     ", wanted a divisor of hidden = " + std::to_string(spec.hidden)};
  }
  if (spec.sliding_window != 0 || spec.full_layers != 0) {
    return Error{ErrorCode::kInvalidConfig, "engine.model.slidingWindow: found " +
                                                std::to_string(spec.sliding_window) +
                                                ", wanted nothing under family GPT2"};
  }
  if (!(spec.dropout >= 0 && spec.dropout < 1)) {
    return Error{ErrorCode::kInvalidConfig, "engine.model.dropout: found " +
                                                std::to_string(spec.dropout) +
                                                ", wanted 0 <= dropout < 1"};
  }
  return Gpt2Builder(spec, tensor_chunks).build();
}

}  // namespace trainyard::engine
