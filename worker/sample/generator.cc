#include "worker/sample/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/random/philox.h"
#include "worker/engine/limits.h"

namespace trainyard::engine {
namespace {

/// From here on two neighbouring logits are a nat or more apart: they say nothing of probabilities.
constexpr float kLogitLimit = 1 << 24;

/// Whether there is something to draw from.
Status check_logits(std::span<const float> logits) {
  const auto good = [](float logit) { return std::abs(logit) < kLogitLimit; };  // NaN: false
  if (std::all_of(logits.begin(), logits.end(), good)) return {};
  return Error{ErrorCode::kInvalidData,
               "logits: found one that is not finite or too large; the model has diverged: name an "
               "older checkpoint (trainyard ckpt ls)"};
}

}  // namespace

int32_t choose_token(std::span<const float> logits, int64_t vocab, const SampleOptions& options,
                     double draw) {
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  const auto more = [&](int32_t a, int32_t b) {
    const float la = logits[static_cast<size_t>(a)];
    const float lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  if (options.temperature <= 0) return *std::min_element(order.begin(), order.end(), more);
  const int64_t kept = options.top_k > 0 ? std::min(options.top_k, vocab) : vocab;
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), more);
  order.resize(static_cast<size_t>(kept));
  const double best = logits[static_cast<size_t>(order.front())];
  std::vector<double> weights;
  double total = 0;
  for (const int32_t token : order) {
    const double logit = logits[static_cast<size_t>(token)];
    weights.push_back(std::exp((logit - best) / options.temperature));
    total += weights.back();
  }
  double left = draw * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

int64_t drawn_ids(int64_t model_vocabulary, int64_t tokenizer_vocabulary) {
  return tokenizer_vocabulary > 0 ? std::min(model_vocabulary, tokenizer_vocabulary)
                                  : model_vocabulary;
}

int64_t context_tokens(const Engine& engine) {
  const api::EngineSpec& spec = engine.spec();
  const api::ModelSpec& model = spec.model;
  const bool imported = !model.import_path.empty();
  const int64_t trained = imported ? model.max_positions : spec.data.sequence_length;
  return std::min(
      {trained, model.max_positions, attended_positions(model, engine.device().limits())});
}

Status generate(Engine& engine, std::vector<int32_t> prompt, const SampleOptions& options,
                const std::function<bool(int32_t token)>& on_token) {
  const int64_t vocab = engine.model().vocab;
  if (prompt.empty()) {
    return Error{ErrorCode::kInvalidConfig, "prompt: found no token, wanted at least one"};
  }
  for (const int32_t token : prompt) {
    if (token >= 0 && token < vocab) continue;
    return Error{ErrorCode::kInvalidConfig, "prompt: found token " + std::to_string(token) +
                                                ", wanted 0 to " + std::to_string(vocab - 1) +
                                                "; is the tokenizer the model's?"};
  }
  const auto window = static_cast<size_t>(context_tokens(engine));
  const int64_t drawn = drawn_ids(vocab, options.tokenizer_vocabulary);
  for (int64_t i = 0; i < options.tokens; ++i) {
    const std::span<const int32_t> context =
        std::span<const int32_t>(prompt).last(std::min(window, prompt.size()));
    TRAINYARD_ASSIGN(const std::span<const float> logits, engine.next_logits(context));
    TRAINYARD_TRY(check_logits(logits.first(static_cast<size_t>(vocab))));
    const auto words = philox4x32(
        {static_cast<uint32_t>(i), 0, 0, 0},
        {static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32)});
    const int32_t token = choose_token(logits, drawn, options, words[0] * 0x1p-32);
    if (token == options.stop_token || !on_token(token)) return {};
    prompt.push_back(token);
  }
  return {};
}

}  // namespace trainyard::engine
