#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/hf/gpt2.h"

namespace trainyard::hf {

/// What a checkpoint's configuration says that no manifest does.
struct RunFacts {
  /// An imported model's own; nullopt in checkpoints from before it was kept, whose models are
  /// taken to have GPT-2's 1e-5.
  std::optional<double> layer_norm_epsilon;
  ImportedFacts imported;
  /// The tokenizer that the tokens were made with: its name and identity, hexadecimal. Empty in
  /// checkpoints from before they were kept.
  std::string tokenizer;
  std::string tokenizer_hash;
};

/// A run's configuration with `facts` in it: layerNormEpsilon and imported of its "model" member,
/// tokenizerName and tokenizerHash of its "data" member. Unchanged where those members are missing.
std::string with_run_facts(std::string config_json, const RunFacts& facts);

/// What with_run_facts() has put there.
RunFacts run_facts_of(std::string_view config_json);

/// Where a run's configuration says that a tokenizer is: data.tokenizer, then model.import.
std::vector<std::string> tokenizer_places(std::string_view config_json);

/// The first member that `found` and `wanted` do not have alike, as "config.json: eos_token_id:
/// found 2, wanted 50256"; empty where all are alike.
std::string difference_of(const ImportedFacts& found, const ImportedFacts& wanted);

}  // namespace trainyard::hf
