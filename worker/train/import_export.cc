#include "worker/train/import_export.h"

#include <algorithm>
#include <cmath>

#include "worker/data/tokenizer.h"
#include "worker/hf/run_tokenizer.h"

namespace trainyard::engine {

Status import_parameters(const hf::HfModel& model, Engine& engine) {
  for (size_t p = 0; p < engine.model().params.size(); ++p) {
    const ParamSpec& param = engine.model().params[p];
    TRAINYARD_ASSIGN(const std::vector<float> values, model.tensor(param.name()));
    const std::span<float> master = engine.store().master(static_cast<int>(p));
    if (values.size() != master.size()) {
      return Error{ErrorCode::kInvalidData,
                   "import: tensor " + param.name() + ": found " + std::to_string(values.size()) +
                       " elements, wanted " + std::to_string(master.size())};
    }
    const auto bad = std::find_if_not(values.begin(), values.end(),
                                      [](float value) { return std::isfinite(value); });
    if (bad != values.end()) {
      return Error{ErrorCode::kInvalidData,
                   "import: tensor " + param.name() + ": found " + std::to_string(*bad) +
                       " at element " + std::to_string(bad - values.begin()) +
                       ", wanted finite numbers: no step could be trained from them"};
    }
    std::copy(values.begin(), values.end(), master.begin());
  }
  engine.parameters_changed();
  return {};
}

std::string doubt_of_tokens(const data::TokenSet& tokens, const std::filesystem::path& folder,
                            int64_t vocab) {
  const std::string theirs = tokens.tokenizer() + " (" + to_hex(tokens.tokenizer_hash()) + ", " +
                             std::to_string(tokens.vocabulary()) + " tokens)";
  const auto tokenizer = data::open_tokenizer(folder);
  if (tokenizer) {
    if ((*tokenizer)->identity() == tokens.tokenizer_hash()) return "";
    return "engine.data.tokens: made with tokenizer " + theirs + ", not with the one in " +
           folder.string() + ", " + std::string((*tokenizer)->name()) + " (" +
           to_hex((*tokenizer)->identity()) + "): the model may read other words than the text has";
  }
  if (tokenizer.error().code != ErrorCode::kNotFound) {
    return "engine.data.tokens: made with tokenizer " + theirs +
           "; whether that is the model's cannot be told: " + tokenizer.error().message;
  }
  // Vocabularies are padded, but not by a tenth.
  if (10 * tokens.vocabulary() >= 9 * vocab) return "";
  return "engine.data.tokens: made with tokenizer " + theirs + ", and the model of " +
         folder.string() + " knows " + std::to_string(vocab) +
         ": is it the model's tokenizer? Otherwise the model reads other words than the text has";
}

Result<std::string> export_hugging_face(Engine& engine, const std::filesystem::path& folder,
                                        const std::string& job_uid, const hf::RunFacts& facts) {
  std::vector<std::string> places;
  for (const std::string& place : {engine.spec().data.tokenizer, engine.spec().model.import_path}) {
    if (!place.empty()) places.push_back(place);
  }
  TRAINYARD_ASSIGN(const hf::GatheredExtras gathered, hf::gather_extras(facts, places));
  const Gpt2Config& config = engine.config();
  const hf::Gpt2Config exported{.layers = config.layers,
                                .hidden = config.hidden,
                                .heads = config.heads,
                                .ffn = config.ffn,
                                .vocab = config.vocab,
                                .max_positions = config.max_positions,
                                .layer_norm_epsilon = config.layer_norm_epsilon,
                                .dropout = config.dropout};
  const auto get_tensor = [&](std::string_view name) -> Result<std::vector<float>> {
    for (size_t p = 0; p < engine.model().params.size(); ++p) {
      if (engine.model().params[p].name() != name) continue;
      const auto master = engine.store().master(static_cast<int>(p));
      return std::vector<float>(master.begin(), master.end());
    }
    return Error{ErrorCode::kInternal, "export: no parameter " + std::string(name)};
  };
  TRAINYARD_TRY(hf::export_gpt2(folder, exported, get_tensor,
                                hf::ExportMark{.job_uid = job_uid, .step = engine.steps_done()},
                                gathered.extras));
  return gathered.without_tokenizer;
}

}  // namespace trainyard::engine
