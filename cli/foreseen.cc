#include "cli/foreseen.h"

#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "cli/plan_view.h"
#include "cli/run/format.h"
#include "cli/run/limits.h"
#include "cli/run/result_file.h"
#include "common/api/job_size.h"
#include "control/local/job_store.h"
#include "control/policies/elastic.h"
#include "worker/checkpoint/store.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/learning_rate.h"
#include "worker/job/job_plan.h"
#include "worker/job/preflight.h"
#include "worker/job/resolve.h"
#include "worker/job/same_run.h"
#include "worker/trace/recorder.h"

namespace trainyard::cli {
namespace {

/// What the learning rate is from the first step that is still to be done to the last.
std::string rates_text(const api::EngineSpec& engine, int64_t done) {
  const auto after = [&](int64_t updates) {
    return engine::learning_rate(engine.learning_rate_schedule, engine.optimizer.learning_rate,
                                 api::horizon_of(engine), updates);
  };
  return fmt::format("the learning rate is {:.3g} at step {} and {:.3g} at step {}", after(done),
                     grouped(done + 1), after(engine.steps - 1), grouped(engine.steps));
}

/// The part of a step in which the ranks of a pipeline wait.
std::optional<double> bubble_of(const engine::MemoryPlan& plan) {
  if (plan.stages().ranks() == 1) return std::nullopt;
  const auto timeline = planned_timeline(plan, engine::PassCosts::kFlops);
  return timeline ? std::optional(timeline->bubble()) : std::nullopt;
}

/// A complete run is taken up again only where its ranks will find a checkpoint to go on from: it
/// would have failed otherwise.
Status check_goes_further(const std::filesystem::path& checkpoints) {
  checkpoint::PosixFileSystem files;
  std::vector<std::string> notes;
  const auto newest = checkpoint::open_newest_good(files, checkpoints, std::nullopt,
                                                   checkpoint::Verify::kAll, &notes);
  if (newest) return {};
  std::string why = newest.error().message;
  if (!notes.empty()) why += "; " + notes.front();
  return Error{
      ErrorCode::kInvalidData,
      checkpoints.string() +
          ": found no good checkpoint from which the complete run can be trained further (" + why +
          "); put the steps back"};
}

/// check_planned() and check_memory(). `may_find_gpus`: what does not fit is a warning.
Result<std::string> fits_here(const engine::MemoryPlan& plan, const api::TrainingJobSpec& job,
                              api::EngineSpec complete, bool may_find_gpus) {
  TRAINYARD_TRY(engine::check_file_size(plan));
  const Status limits = check_planned(job, plan);
  if (!limits && !may_find_gpus) return limits.error();
  if (!limits) return engine::kOnCpus + limits.error().message;
  if (may_find_gpus) complete.runtime.memory_check = api::MemoryCheck::kWarn;
  TRAINYARD_ASSIGN(const std::string doubt, engine::check_memory(plan, {0, api::ranks_of(job)},
                                                                 complete, engine::memory_room()));
  return (may_find_gpus && !doubt.empty() ? engine::kOnCpus : "") + doubt;
}

}  // namespace

Result<Foreseen> foresee(const api::TrainingJob& job, const std::filesystem::path& run_dir,
                         bool traces, int64_t gpus) {
  if (!job.spec.engine) return Foreseen{};
  api::TrainingJobSpec spec = job.spec;
  spec.num_nodes = control::policies::nodes_at_start(spec);
  const std::filesystem::path checkpoints = control::local::checkpoint_dir_of(run_dir, job);
  TRAINYARD_ASSIGN(const engine::Inputs inputs, engine::open_inputs(*spec.engine, checkpoints));
  TRAINYARD_TRY(engine::check_inputs(*spec.engine, inputs, api::ranks_of(spec)));
  TRAINYARD_TRY(engine::check_processor(*spec.engine));
  std::error_code error;
  // One that is complete does not go on, whatever has become of its data.
  const auto result = read_result(run_dir);
  const bool over = result && (result->step >= spec.engine->steps || result->stopped_early) &&
                    !control::local::asks_for_more(run_dir, job);
  if (result && !over) TRAINYARD_TRY(check_goes_further(checkpoints));
  if (!over) {
    hf::ExportOwner owner{.job_uid = ""};  // a new run has exported nothing yet
    if (std::filesystem::exists(run_dir / control::local::kJobFile, error)) {
      TRAINYARD_TRY(engine::check_goes_on(*spec.engine, inputs, checkpoints));
      owner.job_uid.reset();  // its ranks know it
    }
    TRAINYARD_TRY(engine::check_export_place(*spec.engine, inputs, owner));
  }
  api::EngineSpec complete = *spec.engine;
  if (complete.device == api::DeviceKind::kAuto) {
    complete.device = engine::device_of_run(complete, checkpoints).value_or(api::DeviceKind::kAuto);
  }
  TRAINYARD_TRY(engine::resolve_spec(complete, inputs));
  engine::JobPlace place{
      .ranks = api::ranks_of(spec),
      .kernel_scratch_bytes = engine::cpu_scratch_bytes(static_cast<int>(complete.runtime.threads)),
      .keeps_states = engine::keeps_states(spec),
      .ranks_with_copies = engine::ranks_with_copies(spec),
      .trace_ring_bytes = traces ? trace::Recorder::kRingBytes : 0};
  TRAINYARD_ASSIGN(const engine::MemoryPlan plan, engine::plan_job(complete, place));
  Foreseen foreseen{.doubt = "", .cut = cut_text(plan), .bubble = bubble_of(plan), .rates = ""};
  if (result && !over && result->step < complete.steps)
    foreseen.rates = rates_text(complete, result->step);
  TRAINYARD_ASSIGN(foreseen.doubt,
                   fits_here(plan, spec, complete, engine::may_find_gpus(complete, gpus)));
  if (!foreseen.doubt.empty()) return foreseen;
  // A limit of pods limits nothing here, and nobody traces there.
  place.trace_ring_bytes = 0;
  TRAINYARD_ASSIGN(const engine::MemoryPlan untraced, engine::plan_job(complete, place));
  const auto in_pods = engine::check_pod_memory(untraced, spec, complete);
  const bool may_find = engine::may_find_gpus(complete, api::gpus_of_trainer(spec));
  foreseen.doubt = in_pods ? *in_pods : in_pods.error().message;
  if (!foreseen.doubt.empty())
    foreseen.doubt = "in a cluster: " + ((may_find ? engine::kOnCpus : "") + foreseen.doubt);
  return foreseen;
}

}  // namespace trainyard::cli
