#include "worker/job/import_export.h"

#include <algorithm>
#include <cmath>

#include "worker/data/text/tokenizer.h"
#include "worker/hf/run_tokenizer.h"

namespace trainyard::engine {

Status import_parameters(const hf::HfModel& model, Engine& engine) {
  return engine.set_parameters(
      [&](int p, const layout::Rectangle& slice, std::span<float> values) -> Status {
        const ParamSpec& param = engine.model().params[static_cast<size_t>(p)];
        const Status read = model.read(param, slice, values);
        if (!read) return read.error().with_context("import");
        const auto bad = std::find_if_not(values.begin(), values.end(),
                                          [](float value) { return std::isfinite(value); });
        if (bad != values.end()) {
          int64_t element = bad - values.begin();
          if (slice.shape.size() > 1) {
            element = (slice.offset[0] + element / slice.shape[1]) * param.tensor.shape[1] +
                      slice.offset[1] + element % slice.shape[1];
          } else {
            element += slice.offset[0];
          }
          return Error{ErrorCode::kInvalidData,
                       "import: tensor " + param.name() + ": found " + std::to_string(*bad) +
                           " at element " + std::to_string(element) +
                           ", wanted finite numbers: no step could be trained from them"};
        }
        return {};
      });
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
           "; it is unknown whether that is the model's: " + tokenizer.error().message;
  }
  // Vocabularies are padded, but not by a tenth.
  if (10 * tokens.vocabulary() >= 9 * vocab) return "";
  return "engine.data.tokens: made with tokenizer " + theirs + ", and the model of " +
         folder.string() + " knows " + std::to_string(vocab) +
         ": is it the model's tokenizer? Otherwise the model reads other words than the text has";
}

namespace {

/// What the other ranks do while rank 0 exports: it says which parameter it wants their part of.
constexpr int32_t kExported = -1;

Status serve_export(EngineState& state) {
  while (true) {
    int32_t wanted = kExported;
    TRAINYARD_TRY(
        hear(*state.engine().groups().world, std::as_writable_bytes(std::span(&wanted, 1))));
    if (wanted == kExported) return {};
    TRAINYARD_TRY(state.gather_pieces(wanted, checkpoint::TensorKind::kParameter, {}));
  }
}

Status want(EngineState& state, int32_t param) {
  std::vector<int> ranks;
  for (const layout::Owner& owner : state.engine().states().layout().owners(param))
    ranks.push_back(owner.rank);
  return tell(*state.engine().groups().world, ranks, std::as_writable_bytes(std::span(&param, 1)));
}

Status end_export(EngineState& state) {
  int32_t exported = kExported;
  return tell_all(*state.engine().groups().world, std::as_writable_bytes(std::span(&exported, 1)));
}

Result<hf::GatheredExtras> extras_of(const api::EngineSpec& spec, const hf::RunFacts& facts) {
  std::vector<std::string> places;
  for (const std::string& place : {spec.data.tokenizer, spec.model.import_path}) {
    if (!place.empty()) places.push_back(place);
  }
  return hf::gather_extras(facts, places);
}

}  // namespace

hf::RunFacts facts_of(const Inputs& inputs) {
  return {.imported = inputs.facts,
          .tokenizer = inputs.tokens.tokenizer(),
          .tokenizer_hash = to_hex(inputs.tokens.tokenizer_hash())};
}

Status check_export(const api::EngineSpec& spec, const hf::RunFacts& facts,
                    const hf::ExportOwner& owner) {
  const std::string& folder = spec.export_to.hugging_face;
  if (folder.empty()) return {};
  TRAINYARD_ASSIGN(const hf::GatheredExtras gathered, extras_of(spec, facts));
  TRAINYARD_ASSIGN(const auto files, hf::export_files(spec.model, gathered.extras));
  const Status allowed = hf::check_export_folder(folder, owner, files);
  if (allowed) return {};
  Error error = allowed.error().with_context("engine.export.huggingFace");
  if (error.code == ErrorCode::kAlreadyExists) error.code = ErrorCode::kInvalidConfig;
  return error;
}

Result<std::string> export_hugging_face(EngineState& state, const std::filesystem::path& folder,
                                        const std::string& job_uid, const hf::RunFacts& facts) {
  Engine& engine = state.engine();
  TRAINYARD_TRY(engine.settle());
  if (engine.groups().world->rank() != 0) {
    TRAINYARD_TRY(serve_export(state));
    return std::string();
  }
  const Result<hf::GatheredExtras> gathered = extras_of(engine.spec(), facts);
  if (!gathered) {
    TRAINYARD_TRY(end_export(state));
    return gathered.error();
  }
  const auto read_tensor = [&](const ParamSpec& param, const hf::UsePiece& use) -> Status {
    for (const int p : engine.name_order()) {
      if (engine.model().params[static_cast<size_t>(p)].name() != param.name()) continue;
      TRAINYARD_TRY(want(state, p));
      Status used;  // the others send the rest, whatever becomes of it here
      TRAINYARD_TRY(state.gather_pieces(p, checkpoint::TensorKind::kParameter,
                                        [&](std::span<const float> piece) {
                                          if (used) used = use(piece);
                                        }));
      return used;
    }
    return Error{ErrorCode::kInternal, "export: no parameter " + param.name()};
  };
  const Status written = hf::export_model(
      folder, engine.spec().model, read_tensor,
      hf::ExportMark{.job_uid = job_uid, .step = engine.steps_done()}, gathered->extras);
  const Status told = end_export(state);
  TRAINYARD_TRY(written);
  TRAINYARD_TRY(told);
  return gathered->without_tokenizer;
}

}  // namespace trainyard::engine
