#pragma once

#include <filesystem>
#include <string>

#include "common/base/error.h"
#include "worker/hf/gpt2.h"
#include "worker/train/engine.h"

namespace trainyard::engine {

/// Copies an imported model's tensors into the masters; moments stay zero. Errors: kInvalidData
/// when a tensor is missing, of another size or holds what is no finite number.
Status import_parameters(const hf::HfModel& model, Engine& engine);

/// Writes the masters as a Hugging Face folder that bears the job's mark; one that it wrote before
/// is replaced. Errors: as hf::export_gpt2.
Status export_hugging_face(Engine& engine, const std::filesystem::path& folder,
                           const std::string& job_uid);

}  // namespace trainyard::engine
