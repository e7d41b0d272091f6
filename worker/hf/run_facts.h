#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/checkpoint/state_store.h"
#include "worker/hf/model_folder.h"

namespace trainyard::hf {

/// The engine of the run that left a checkpoint, with the numerics that it was trained with
/// (api::as_trained). Keys that this version does not know are ignored.
/// Errors: kInvalidConfig for what it does not accept.
Result<api::EngineSpec> spec_of_run(const checkpoint::StateStore& stored);

/// What a checkpoint's configuration says that no manifest does.
struct RunFacts {
  ImportedFacts imported;
  /// The tokenizer that the tokens were made with: its name and identity, hexadecimal. Empty in
  /// checkpoints from before they were kept.
  std::string tokenizer;
  std::string tokenizer_hash;
};

/// A run's configuration with `facts` in it: imported of its "model" member, tokenizerName and
/// tokenizerHash of its "data" member. Unchanged where those members are missing.
std::string with_run_facts(std::string config_json, const RunFacts& facts);

/// What with_run_facts() has put there.
RunFacts run_facts_of(std::string_view config_json);

/// Where a run's configuration says that a tokenizer is: data.tokenizer, then model.import.
std::vector<std::string> tokenizer_places(std::string_view config_json);

/// The first member that `found` and `wanted` do not have alike, as "config.json: eos_token_id:
/// found 2, wanted 50256"; empty where all are alike.
std::string difference_of(const ImportedFacts& found, const ImportedFacts& wanted);

}  // namespace trainyard::hf
