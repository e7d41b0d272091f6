#include "worker/job/preflight.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "common/api/job_size.h"
#include "common/io/path_exists.h"
#include "common/io/unexpanded.h"
#include "common/layout/mesh.h"
#include "worker/data/text/tokenizer.h"
#include "worker/device/cpu_device.h"
#include "worker/device/device_choice.h"
#include "worker/engine/limits.h"
#include "worker/job/import_export.h"
#include "worker/job/job_plan.h"
#include "worker/job/resolve.h"
#include "worker/job/same_run.h"
#include "worker/model/family.h"

namespace trainyard::engine {
namespace {

/// What `trainyard sample` reads the model's tokens with must be what they were made with. One that
/// is not on this machine is not looked at: ranks need none.
Status check_tokenizer(const std::string& path, const data::TokenSet& tokens) {
  if (path.empty()) return {};
  const auto tokenizer = data::open_tokenizer(path);
  if (!tokenizer && tokenizer.error().code == ErrorCode::kNotFound) return {};
  if (!tokenizer) return tokenizer.error().with_context("engine.data.tokenizer");
  if ((*tokenizer)->identity() == tokens.tokenizer_hash()) return {};
  return Error{ErrorCode::kInvalidConfig,
               "engine.data.tokenizer: found " + std::string((*tokenizer)->name()) + " (" +
                   to_hex((*tokenizer)->identity()) + "), wanted the one of engine.data.tokens, " +
                   tokens.tokenizer() + " (" + to_hex(tokens.tokenizer_hash()) + ")"};
}

/// A set of at least one sample.
Status check_samples(const data::TokenSet& tokens, int64_t sequence_length, const char* field) {
  if (tokens.samples(sequence_length) >= 1) return {};
  return Error{ErrorCode::kInvalidConfig,
               "engine.data.sequenceLength: found " + std::to_string(sequence_length) +
                   ", wanted at most " + std::to_string(std::max<int64_t>(0, tokens.tokens() - 1)) +
                   ": " + field + " holds " + std::to_string(tokens.tokens()) +
                   " tokens, and a sample is one token longer than sequenceLength"};
}

/// Whether startFrom names a checkpoint that the run may begin from.
Status check_start_of(const api::EngineSpec& spec, const Inputs& inputs) {
  checkpoint::PosixFileSystem files;
  TRAINYARD_ASSIGN(const auto reader, open_start(files, *spec.start_from));
  return check_start(*reader, spec, to_hex(inputs.tokens.identity()), facts_of(inputs));
}

}  // namespace

bool sees_inputs(const api::EngineSpec& spec) {
  const auto there = [](const std::string& path) {
    const Result<bool> exists = path_exists(path);
    // Whoever opens one that may not be looked at, or that can be nowhere, says so.
    return !exists || *exists || !unexpanded(path).empty();
  };
  const api::DataSpec& data = spec.data;
  return std::all_of(data.tokens.begin(), data.tokens.end(), there) &&
         std::all_of(data.validation.begin(), data.validation.end(), there) &&
         (spec.model.import_path.empty() || there(spec.model.import_path));
}

Status check_shapes(const api::EngineSpec& spec, int64_t ranks) {
  TRAINYARD_TRY(check_kernel_limits(spec, limits_of(spec.device)));
  TRAINYARD_ASSIGN(const layout::Mesh mesh,
                   layout::mesh_of(spec.parallelism, static_cast<int>(ranks)));
  return check_batch(spec, mesh.data_ranks());
}

Status check_inputs(const api::EngineSpec& given, const Inputs& inputs, int64_t ranks) {
  api::EngineSpec spec = given;
  TRAINYARD_TRY(resolve_spec(spec, inputs));
  TRAINYARD_TRY(check_tokenizer(spec.data.tokenizer, inputs.tokens));
  TRAINYARD_TRY(check_shapes(spec, ranks));
  TRAINYARD_ASSIGN(const Model model, build_model(spec.model));
  TRAINYARD_ASSIGN(const layout::Mesh mesh,
                   layout::mesh_of(spec.parallelism, static_cast<int>(ranks)));
  TRAINYARD_TRY(stages_of(model, spec, mesh));
  if (inputs.starts_from_another) TRAINYARD_TRY(check_start_of(spec, inputs));
  TRAINYARD_TRY(check_samples(inputs.tokens, spec.data.sequence_length, "engine.data.tokens"));
  if (!inputs.validation) return {};
  TRAINYARD_TRY(check_held_out(*inputs.validation, &inputs.tokens, spec.model.vocab,
                               "engine.data.validation"));
  return check_samples(*inputs.validation, spec.data.sequence_length, "engine.data.validation");
}

Status check_export_place(const api::EngineSpec& given, const Inputs& inputs,
                          const hf::ExportOwner& owner) {
  api::EngineSpec spec = given;
  TRAINYARD_TRY(resolve_spec(spec, inputs));
  return check_export(spec, facts_of(inputs), owner);
}

Result<std::string> check_pods(const api::TrainingJobSpec& job, const Inputs* inputs) {
  if (!job.engine) return std::string();
  const api::ParallelismSpec& parallelism = job.engine->parallelism;
  const bool may_doubt = parallelism.pipeline > 1 && parallelism.zero_stage > 1;
  if (!may_doubt && !api::trainer_memory_limit(job)) return std::string();
  api::EngineSpec spec = *job.engine;
  if (inputs != nullptr) {
    TRAINYARD_TRY(resolve_spec(spec, *inputs));
  } else {
    if (spec.model.vocab == 0 || !spec.model.import_path.empty()) return std::string();
    TRAINYARD_TRY(resolve_spec(spec, std::nullopt));
  }
  const JobPlace place{.ranks = api::ranks_of(job),
                       .one_host = job.num_nodes == 1,
                       .kernel_scratch_bytes = cpu_scratch_bytes(
                           static_cast<int>(std::max<int64_t>(1, spec.runtime.threads))),
                       .keeps_states = keeps_states(job),
                       .ranks_with_copies = ranks_with_copies(job)};
  TRAINYARD_ASSIGN(const MemoryPlan plan, plan_job(spec, place));
  const bool may_find = may_find_gpus(spec, api::gpus_of_trainer(job));
  if (may_find) spec.runtime.memory_check = api::MemoryCheck::kWarn;
  TRAINYARD_ASSIGN(const std::string doubt, check_pod_memory(plan, job, spec));
  if (!doubt.empty()) return (may_find ? kOnCpus : "") + doubt;
  if (!may_doubt) return std::string();
  spec.parallelism.zero_stage = 1;
  TRAINYARD_ASSIGN(const MemoryPlan at_stage_1, plan_job(spec, place));
  return fits_pods(at_stage_1, job) ? sharding_doubt(plan, at_stage_1, {}) : std::string();
}

}  // namespace trainyard::engine
