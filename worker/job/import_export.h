#pragma once

#include <filesystem>
#include <string>

#include "common/base/error.h"
#include "worker/data/dataset.h"
#include "worker/hf/model_folder.h"
#include "worker/hf/run_facts.h"
#include "worker/job/engine_state.h"
#include "worker/job/inputs.h"

namespace trainyard::engine {

/// Copies an imported model's tensors into the masters; moments stay zero. Errors: kInvalidData
/// when a tensor is missing, of another size or holds what is no finite number.
Status import_parameters(const hf::HfModel& model, Engine& engine);

/// What speaks against training the model of that folder on these tokens, in words for people: the
/// tokenizer that lies there is not theirs, or, where none does, they know far fewer ids than the
/// model's `vocab`. Such a run would go well and learn nothing of use. Empty: nothing does.
std::string doubt_of_tokens(const data::TokenSet& tokens, const std::filesystem::path& folder,
                            int64_t vocab);

/// What a checkpoint is to keep of a run's inputs.
hf::RunFacts facts_of(const Inputs& inputs);

/// Whether the export of a resolved spec may be written where it says, as hf::check_export_folder;
/// true where there is none. For before the first step, as the export comes after the last. Errors:
/// kInvalidConfig naming the field; those of hf::gather_extras; kIo.
Status check_export(const api::EngineSpec& spec, const hf::RunFacts& facts,
                    const hf::ExportOwner& owner);

/// Writes the masters as a Hugging Face folder that bears the job's mark; one that it wrote before
/// is replaced. The tokenizer's files come from where the engine's spec leads to them. Collective
/// over the world; rank 0 writes. Returns why there are no tokenizer files;
/// empty on other ranks and where there are. Errors: as hf::gather_extras and hf::export_model, and
/// those of the communicator.
Result<std::string> export_hugging_face(EngineState& state, const std::filesystem::path& folder,
                                        const std::string& job_uid, const hf::RunFacts& facts);

}  // namespace trainyard::engine
