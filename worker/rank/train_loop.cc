#include "worker/rank/train_loop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "common/io/control_group.h"
#include "common/io/memory_facts.h"
#include "common/layout/mesh.h"
#include "worker/checkpoint/communicator_group.h"
#include "worker/data/batch_loader.h"
#include "worker/data/evaluation_loader.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"
#include "worker/engine/limits.h"
#include "worker/job/engine_state.h"
#include "worker/job/import_export.h"
#include "worker/job/inputs.h"
#include "worker/job/job_plan.h"
#include "worker/job/resolve.h"
#include "worker/job/same_run.h"
#include "worker/rank/checkpoint_schedule.h"
#include "worker/rank/work_meter.h"

namespace trainyard::engine {
namespace {

/// Steps skipped one after another at which a run gives up: their batches differ, so it is the
/// parameters, which no skipped step changes.
constexpr int64_t kSkippedStepsMax = 100;

/// Weight of the newest step in the mean step time shown: about the last ten.
constexpr double kStepTimeSmoothing = 0.1;

int threads_of(const TrainContext& context) {
  if (context.spec.runtime.threads > 0) return static_cast<int>(context.spec.runtime.threads);
  return std::max(1, usable_cpus() / std::max(1, context.local_world_size));
}

/// The exponentially weighted mean with one more value; 0: none yet.
double smoothed(double mean, double value) {
  return mean == 0 ? value : (1 - kStepTimeSmoothing) * mean + kStepTimeSmoothing * value;
}

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

/// Tokens over the time that passed for them, what comes between steps included; the past fades
/// within seconds, so that neither one quick step nor one pause is taken for the pace.
class RateMeter {
 public:
  /// Notes `tokens` done within the newest `seconds`; returns tokens per second.
  double add(double tokens, double seconds) {
    constexpr double kMemorySeconds = 10;
    const double kept = kMemorySeconds / (kMemorySeconds + seconds);
    tokens_ = tokens_ * kept + tokens;
    seconds_ = seconds_ * kept + seconds;
    return seconds_ > 0 ? tokens_ / seconds_ : 0;
  }

 private:
  double tokens_ = 0;
  double seconds_ = 0;
};

/// One rank's run; the methods are the phases in order.
class Run {
 public:
  explicit Run(const TrainContext& context) : context_(context), spec_(context.spec) {}

  Result<TrainOutcome> operator()() {
    context_.progress->set_phase(contract::Phase::kRestoring);
    TRAINYARD_TRY(open_files());
    TRAINYARD_TRY(build_engine());
    TRAINYARD_TRY(begin_generation());
    TRAINYARD_ASSIGN(stopping_, anybody_asked_to_stop());
    if (stopping_) {  // nothing is lost: its state is as it was found
      return TrainOutcome{.checkpointed = true, .result = {.step = engine_->steps_done()}};
    }
    TRAINYARD_TRY(open_batches());
    context_.progress->set_phase(contract::Phase::kTraining);
    if (context_.meter != nullptr) context_.meter->begin(trace::monotonic_ns());
    while (engine_->steps_done() < spec_.steps && !stopping_) {
      TRAINYARD_TRY(step());
      TRAINYARD_TRY(evaluate_when_due());
      TRAINYARD_TRY(checkpoint_when_due());
      count_turn();
    }
    TRAINYARD_TRY(evaluate_at_end());
    TRAINYARD_TRY(check_end());
    return finish();
  }

 private:
  Status open_files() {
    const bool goes_on = context_.resume.parent_generation.has_value();
    TRAINYARD_ASSIGN(
        inputs_, open_inputs(spec_, goes_on ? context_.checkpoint_root : std::filesystem::path()));
    return {};
  }

  Status build_engine() {
    TRAINYARD_TRY(resolve_spec(spec_, inputs_->tokens, inputs_->shape));
    tell_of_import();
    if (inputs_->validation) {
      TRAINYARD_TRY(check_held_out(*inputs_->validation, &inputs_->tokens, spec_.model.vocab,
                                   "engine.data.validation"));
      if (context_.groups->world->rank() == 0) warn(inputs_->shared_text);
    }
    facts_ = facts_of(*inputs_);
    if (context_.groups->world->rank() == 0) {
      TRAINYARD_TRY(check_export(spec_, facts_, {.job_uid = context_.job_uid}));
    }
    TRAINYARD_TRY(check_plan());
    TRAINYARD_ASSIGN(device_, make_cpu_device({.isa = kernel_isa(spec_.runtime.isa),
                                               .threads = threads_of(context_)}));
    TRAINYARD_ASSIGN(engine_, Engine::create({.spec = spec_,
                                              .device = device_.get(),
                                              .groups = context_.groups,
                                              .spans = context_.spans}));
    engine_->set_instruction_hook([this](int id, const Instruction& instruction, int64_t level) {
      context_.progress->position({name_of(instruction.kind), instruction.micro_batch,
                                   std::max(instruction.layer, instruction.unit)},
                                  level);
      work_.instruction(instruction.kind, context_.clock->mono());
      context_.progress->instruction(id);
    });
    engine_->set_wait_hook([this](bool waits) { work_.wait(waits, context_.clock->mono()); });
    context_.progress->set_total_steps(spec_.steps);
    state_ = std::make_unique<EngineState>(*engine_, to_hex(inputs_->tokens.identity()), facts_);
    const MemoryReport memory = engine_->memory();
    count_memory(memory);
    if (context_.groups->world->rank() == 0) {
      context_.log->info("model ready", {{"parameters", engine_->model().parameter_count()},
                                         {"parameter_state_bytes", memory.parameters},
                                         {"activation_bytes", memory.activations},
                                         {"device", device_->name()}});
    }
    return {};
  }

  /// Plans all ranks and compares those of this machine with its memory. Nobody allocates before
  /// all have compared: each would find what another one has taken.
  Status check_plan() {
    const int64_t world = context_.groups->world->size();
    const int64_t local = std::clamp<int64_t>(context_.local_world_size, 1, world);
    TRAINYARD_ASSIGN(
        plan_, plan_job(spec_, {.ranks = world,
                                .one_host = local == world,
                                .kernel_scratch_bytes = cpu_scratch_bytes(threads_of(context_)),
                                .writes_checkpoints = !context_.checkpoint_root.empty()}));
    const int64_t first = context_.groups->world->rank() / local * local;
    TRAINYARD_ASSIGN(
        const std::string doubt,
        check_memory(*plan_, {first, std::min(first + local, world)}, spec_, memory_room(local)));
    warn(doubt);
    return context_.groups->world->barrier()->wait();
  }

  /// What is not as whoever made the model would expect.
  void tell_of_import() const {
    const bool gone = inputs_->shape && !inputs_->imported;
    if (gone) {
      context_.log->info("engine.model.import is gone; a checkpoint stands in for it",
                         {{"folder", spec_.model.import_path}});
    }
    if (!inputs_->imported) return;
    for (const std::string& note : inputs_->imported->notes())
      context_.log->warning(note);
    if (context_.groups->world->rank() != 0) return;
    const double theirs = inputs_->shape->dropout;
    if (theirs != spec_.model.dropout) {
      context_.log->warning(
          "engine.model.dropout counts, not the import's",
          {{"dropout", spec_.model.dropout}, {"resid_pdrop of config.json", theirs}});
    }
    const std::string doubt =
        doubt_of_tokens(inputs_->tokens, spec_.model.import_path, spec_.model.vocab);
    warn(doubt);
  }

  /// Tells whoever watches the job; nothing where `doubt` is empty.
  void warn(const std::string& doubt) const {
    if (doubt.empty()) return;
    context_.log->warning(doubt);
    if (context_.warn) context_.warn(doubt);
  }

  /// Weights: from the newest good checkpoint of the parent generation, else from another run's,
  /// imported or fresh.
  /// Restoring comes first: making weights that a checkpoint replaces would cost every recovery
  /// seconds.
  Status begin_generation() {
    if (!context_.checkpoint_root.empty()) {
      TRAINYARD_ASSIGN(checkpoints_, CheckpointSchedule::begin(context_, *state_));
    }
    const bool restored = checkpoints_ && checkpoints_->restored();
    if (!restored && !context_.stop_requested()) TRAINYARD_TRY(make_weights());
    inputs_->imported.reset();
    context_.progress->restored_step(engine_->steps_done());
    return {};
  }

  /// Before the first step, for ranks that have given up to restore or to make their weights.
  Result<bool> anybody_asked_to_stop() {
    return checkpoint::CommunicatorCommitGroup(*context_.groups->world)
        .any(context_.stop_requested());
  }

  Status make_weights() {
    if (spec_.start_from) {
      checkpoint::PosixFileSystem files;
      TRAINYARD_ASSIGN(const auto reader, open_start(files, *spec_.start_from));
      const bool state = spec_.start_from->what == api::StartWhat::kState;
      if (state && context_.groups->world->rank() == 0) warn(doubt_of_horizon(*reader, spec_));
      Status started = state_->start_from(*reader, context_.stop_requested);
      if (started) return started;
      return started.error().with_context("engine.startFrom.checkpoint: " +
                                          spec_.start_from->checkpoint);
    }
    if (inputs_->imported) return import_parameters(*inputs_->imported, *engine_);
    if (inputs_->shape) {
      return Error{ErrorCode::kNotFound,
                   "engine.model.import: " + spec_.model.import_path +
                       " is gone, and no checkpoint could be restored in its place: put the folder "
                       "back"};
    }
    engine_->initialize();
    return {};
  }

  Status open_batches() {
    TRAINYARD_ASSIGN(
        auto loader,
        data::BatchLoader::open(inputs_->tokens, {.seed = static_cast<uint64_t>(spec_.seed),
                                                  .tokens_per_sample = spec_.data.sequence_length,
                                                  .batch = partition(),
                                                  .data_rank = context_.groups->data_rank(),
                                                  .first_step = engine_->steps_done(),
                                                  .timeout = context_.data_timeout}));
    loader_ = std::make_unique<data::BatchLoader>(std::move(loader));
    if (!inputs_->validation) return {};
    TRAINYARD_ASSIGN(auto held_out,
                     data::EvaluationLoader::open(*inputs_->validation,
                                                  {.tokens_per_sample = spec_.data.sequence_length,
                                                   .micro_sequences = evaluated_at_once(),
                                                   .windows_max = spec_.evaluation.sequences,
                                                   .data_ranks = context_.groups->data_ranks(),
                                                   .data_rank = context_.groups->data_rank()}));
    evaluation_ = std::make_unique<data::EvaluationLoader>(std::move(held_out));
    return {};
  }

  data::BatchPartition partition() const {
    return partition_of(spec_.batch, context_.groups->data_ranks());
  }

  int64_t evaluated_at_once() const { return engine::evaluated_at_once(partition()); }

  Status step() {
    const MonoTime begin = context_.clock->mono();
    if (pace_from_ == MonoTime{}) pace_from_ = begin;
    work_.begin_step();
    TRAINYARD_ASSIGN(const StepReport report, engine_->step(*loader_, context_.stop_requested));
    const MonoTime end = context_.clock->mono();
    const Duration taken = end - begin;
    step_seconds_ = smoothed(step_seconds_, seconds(taken));
    work_seconds_ = smoothed(work_seconds_, seconds(work_.end_step(end)));
    context_.progress->work_seconds(work_seconds_);
    skipped_in_a_row_ = report.skipped ? skipped_in_a_row_ + 1 : 0;
    // Not each of a hundred: what is said last must not be only that.
    if (skipped_in_a_row_ == 1 && context_.groups->world->rank() == 0) {
      context_.log->warning("step skipped: an exact gradient sum overflowed or was not finite",
                            {{"step", engine_->steps_done()}});
      if (!std::exchange(told_of_skips_, true) && context_.warn) {
        context_.warn("step " + std::to_string(engine_->steps_done()) +
                      " was skipped, as are all whose loss or gradient is not finite or too large: "
                      "does the model diverge? trainyard_rank_skipped_steps_total counts them");
      }
    }
    state_->set_skipped_in_a_row(skipped_in_a_row_);
    // A run whose every step is skipped learns nothing, however long it goes on.
    if (skipped_in_a_row_ >= kSkippedStepsMax) return diverged(skipped_text(), "");
    stopping_ = report.stop_requested;
    if (!report.skipped) state_->set_loss(report.loss);
    const int64_t samples = engine_->samples_consumed();
    // The ranks of a pipeline train the same tokens: its first counts them.
    const int64_t own_samples =
        context_.groups->at.pp == 0 ? partition().share(context_.groups->data_rank()).size() : 0;
    context_.progress->count_step(taken, own_samples * spec_.data.sequence_length, report.skipped);
    const int64_t batch_tokens = spec_.batch.global_sequences * spec_.data.sequence_length;
    context_.progress->step_done({.step = engine_->steps_done(),
                                  .samples_consumed = samples,
                                  .tokens_consumed = samples * spec_.data.sequence_length,
                                  .loss = report.loss,
                                  .gradient_norm = report.gradient_norm,
                                  .learning_rate = report.learning_rate,
                                  .step_seconds = step_seconds_,
                                  .tokens_per_second = rate_.add(static_cast<double>(batch_tokens),
                                                                 seconds(end - pace_from_))});
    pace_from_ = end;
    return {};
  }

  /// `what` went wrong; `otherwise`, which may be empty, what else it may be and what to do then.
  /// What to go on from is said last: of a long message a status keeps the end.
  Error diverged(const std::string& what, const std::string& otherwise) const {
    return {ErrorCode::kInvalidData,
            "training: " + what + ": the model has diverged" + otherwise +
                "; lower learningRate or gradientClip, or lengthen the warmup, and " +
                (checkpoints_ ? checkpoints_->advice() : "begin anew")};
  }

  std::string skipped_text() const {
    return "the last " + std::to_string(skipped_in_a_row_) + " steps, to step " +
           std::to_string(engine_->steps_done()) +
           ", were skipped (loss or gradient not finite or too large)";
  }

  /// A run is complete when its last step was done and leaves a model that computes.
  Status check_end() {
    if (!is_last_step()) return {};
    if (skipped_in_a_row_ > 0) {
      // One batch in a thousand may be too large for a good model: its state is kept.
      if (checkpoints_) TRAINYARD_TRY(checkpoints_->finish(true));
      return diverged(skipped_text(),
                      " (or, where only a batch was too large, raise engine.steps)");
    }
    if (!evaluation_) return check_model();
    if (evaluated_step_ != engine_->steps_done() || std::isfinite(validation_loss_)) return {};
    return diverged("the loss on engine.data.validation after the last step, " +
                        std::to_string(engine_->steps_done()) + ", is not finite",
                    "");
  }

  /// Without validation data nothing else would show that the last update has made the model
  /// diverge: a window of the training data per data rank does.
  Status check_model() {
    const int64_t ranks = context_.groups->data_ranks();
    TRAINYARD_ASSIGN(auto windows,
                     data::EvaluationLoader::open(inputs_->tokens,
                                                  {.tokens_per_sample = spec_.data.sequence_length,
                                                   .windows_max = ranks,
                                                   .data_ranks = ranks,
                                                   .data_rank = context_.groups->data_rank()}));
    const StopAsked never;
    TRAINYARD_ASSIGN(const EvaluationReport report,
                     engine_->evaluate(windows, windows.windows(), 1, never));
    if (std::isfinite(report.loss)) return {};
    return diverged("the loss on engine.data.tokens after the last step, " +
                        std::to_string(engine_->steps_done()) + ", is not finite",
                    "");
  }

  bool is_last_step() const { return engine_->steps_done() == spec_.steps; }

  Status evaluate_when_due() {
    if (!evaluation_ || stopping_) return {};
    const int64_t every = spec_.evaluation.every_steps;
    const bool due = every > 0 && engine_->steps_done() % every == 0;
    if (!due && !is_last_step()) return {};
    return evaluate();
  }

  /// A complete run has been evaluated at its last step: also one that goes on from the checkpoint
  /// of that step, because it was asked to stop in it.
  Status evaluate_at_end() {
    if (!is_last_step() || is_evaluated() || (stopping_ && checkpoints_)) return {};
    return evaluate();
  }

  bool is_evaluated() const { return !evaluation_ || evaluated_step_ == engine_->steps_done(); }

  Status evaluate() {
    context_.progress->set_phase(contract::Phase::kEvaluating);
    evaluation_->rewind();
    // Without a checkpoint the run could not go on from here.
    const StopAsked never;
    TRAINYARD_ASSIGN(const EvaluationReport report,
                     engine_->evaluate(*evaluation_, evaluation_->windows(), evaluated_at_once(),
                                       checkpoints_ ? context_.stop_requested : never));
    context_.progress->set_phase(contract::Phase::kTraining);
    stopping_ = stopping_ || report.stop_requested;
    if (report.stop_requested) return {};
    validation_loss_ = report.loss;
    evaluated_step_ = engine_->steps_done();
    context_.progress->validation_loss(validation_loss_);
    if (context_.groups->world->rank() == 0) {
      context_.log->info("evaluated",
                         {{"step", engine_->steps_done()}, {"loss", validation_loss_}});
    }
    return {};
  }

  Status checkpoint_when_due() {
    if (!checkpoints_) return {};
    return checkpoints_->after_step(stopping_ || is_last_step());
  }

  void count_memory(const MemoryReport& memory) {
    Progress& progress = *context_.progress;
    progress.set_memory(contract::MemoryPurpose::kParameters, memory.weights + memory.lent_weights);
    progress.set_memory(contract::MemoryPurpose::kOptimizer, memory.moments);
    progress.set_memory(contract::MemoryPurpose::kGradients, memory.sums + memory.lent_sums);
    progress.set_memory(contract::MemoryPurpose::kActivations, memory.activations);
    progress.set_memory(contract::MemoryPurpose::kKernelScratch, memory.kernel_scratch);
  }

  void count_collectives() {
    static_assert(comm::kOperations.size() == contract::kCollectives);
    const comm::Counters counters = context_.groups->counters();
    for (size_t kind = 0; kind < contract::kCollectives; ++kind) {
      const comm::OperationCounters& so_far = counters.by_operation[kind];
      context_.progress->set_collective(kind, {.operations = so_far.operations,
                                               .nanoseconds = so_far.time.count(),
                                               .bytes_sent = so_far.bytes_sent,
                                               .bytes_received = so_far.bytes_received});
    }
  }

  /// What one turn of the loop was spent on.
  void count_turn() {
    count_collectives();
    if (context_.meter == nullptr) return;
    context_.progress->count_stages(context_.meter->take(trace::monotonic_ns()));
  }

  Result<TrainOutcome> finish() {
    TrainOutcome outcome{.complete = is_last_step() && is_evaluated()};
    // What follows takes as long as it takes, also without checkpoints: it is no step that hangs.
    context_.progress->set_phase(contract::Phase::kCheckpointing);
    if (checkpoints_) {
      TRAINYARD_ASSIGN(outcome.checkpointed, checkpoints_->finish(outcome.complete));
      if (outcome.complete && !outcome.checkpointed) {
        return Error{ErrorCode::kIo,
                     "stopped before the last checkpoint, step " +
                         std::to_string(engine_->steps_done()) + ", could be written to " +
                         context_.checkpoint_root.string() +
                         " (see the errors above); the steps since the one before are lost, so "
                         "the run is not complete"};
      }
    }
    count_turn();
    outcome.result = {.step = engine_->steps_done(),
                      .final_loss = state_->loss(),
                      .validation_loss = validation_loss_,
                      .skipped_steps = engine_->steps_done() - engine_->optimizer().updates()};
    if (outcome.complete) {
      // It gathers every state: a run that was stopped has no time for that.
      TRAINYARD_ASSIGN(const Hash128 hash, state_->hash());
      outcome.result.state_hash = to_hex(hash);
      // Before the export, for which nobody waits.
      TRAINYARD_ASSIGN(outcome.result.peak_memory, peak_memory());
    }
    if (outcome.complete && !spec_.export_to.hugging_face.empty()) {
      TRAINYARD_ASSIGN(
          const std::string without_tokenizer,
          export_hugging_face(*state_, spec_.export_to.hugging_face, context_.job_uid, facts_));
      if (!without_tokenizer.empty()) {
        context_.log->info("exported without tokenizer files", {{"why", without_tokenizer}});
      }
    }
    if (checkpoints_) outcome.result.warnings = checkpoints_->close();
    if (outcome.complete) context_.progress->set_phase(contract::Phase::kDone);
    return outcome;
  }

  /// Of the rank that has occupied the most. Collective.
  Result<std::optional<contract::PeakMemory>> peak_memory() {
    comm::Communicator& world = *context_.groups->world;
    std::vector<int64_t> measured(static_cast<size_t>(world.size()), 0);
    measured[static_cast<size_t>(world.rank())] = peak_own_memory().value_or(0);
    TRAINYARD_TRY(world
                      .all_gather(std::as_writable_bytes(std::span(measured)),
                                  std::vector<int64_t>(measured.size(), 1), DType::kInt64)
                      ->wait());
    const auto most = std::max_element(measured.begin(), measured.end());
    if (*most == 0) return std::optional<contract::PeakMemory>();
    const auto rank = static_cast<size_t>(most - measured.begin());
    return std::optional(contract::PeakMemory{.rank = static_cast<int>(rank),
                                              .planned_bytes = plan_->ranks()[rank].own(),
                                              .measured_bytes = *most});
  }

  const TrainContext& context_;
  api::EngineSpec spec_;
  std::unique_ptr<Device> device_;
  std::optional<Inputs> inputs_;
  std::optional<MemoryPlan> plan_;
  std::unique_ptr<Engine> engine_;
  hf::RunFacts facts_;
  std::unique_ptr<EngineState> state_;
  std::unique_ptr<CheckpointSchedule> checkpoints_;
  std::unique_ptr<data::BatchLoader> loader_;
  std::unique_ptr<data::EvaluationLoader> evaluation_;
  WorkMeter work_;
  double step_seconds_ = 0;
  RateMeter rate_;
  MonoTime pace_from_{};  ///< end of the step before, or the beginning of the first
  double work_seconds_ = 0;
  int64_t skipped_in_a_row_ = 0;
  bool told_of_skips_ = false;
  int64_t evaluated_step_ = -1;
  double validation_loss_ = std::numeric_limits<double>::quiet_NaN();
  bool stopping_ = false;
};

}  // namespace

Result<TrainOutcome> train(const TrainContext& context) {
  Run run(context);
  Result<TrainOutcome> outcome = run();
  // Before the memory that peers still write to goes away.
  if (!outcome) context.groups->abort(outcome.error());
  return outcome;
}

}  // namespace trainyard::engine
