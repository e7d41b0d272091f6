#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/data/text/tokenizer.h"
#include "worker/hf/model_folder.h"
#include "worker/hf/run_facts.h"

namespace trainyard::hf {

/// Refuses a tokenizer that the run's tokens were not made with; none where the checkpoint does not
/// say with which. `what` names where it comes from. Errors: kInvalidConfig.
Status check_run_tokenizer(const RunFacts& facts, const data::Tokenizer& tokenizer,
                           std::string_view what);

/// A tokenizer and the path it was opened from.
struct FoundTokenizer {
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::filesystem::path place;
};

/// The tokenizer that the run's tokens were made with: "bytes", or the first of `places` that is
/// it. Errors: kNotFound saying what is at each place, also where the checkpoint does not say with
/// which tokenizer.
Result<FoundTokenizer> find_run_tokenizer(const RunFacts& facts,
                                          std::span<const std::string> places);

/// What an export has beside the weights: the imported facts, the end-of-text token, and the
/// tokenizer's files under the names that transformers reads.
struct GatheredExtras {
  ExportExtras extras;
  std::string without_tokenizer;  ///< why there are no tokenizer files; empty: there are
};

/// Errors: kIo for a tokenizer's file that cannot be read.
Result<GatheredExtras> gather_extras(const RunFacts& facts, std::span<const std::string> places);

}  // namespace trainyard::hf
