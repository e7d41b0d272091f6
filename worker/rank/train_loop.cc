#include "worker/rank/train_loop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "common/io/control_group.h"
#include "common/io/gpu_files.h"
#include "common/layout/mesh.h"
#include "worker/checkpoint/communicator_group.h"
#include "worker/comm/device_transport.h"
#include "worker/comm/nccl_transport.h"
#include "worker/comm/staged_communicator.h"
#include "worker/data/batch_loader.h"
#include "worker/engine/engine.h"
#include "worker/engine/limits.h"
#include "worker/job/engine_state.h"
#include "worker/job/import_export.h"
#include "worker/job/inputs.h"
#include "worker/job/job_plan.h"
#include "worker/job/resolve.h"
#include "worker/job/same_run.h"
#include "worker/job/unused_parameters.h"
#include "worker/rank/best_model.h"
#include "worker/rank/checkpoint_schedule.h"
#include "worker/rank/evaluations.h"
#include "worker/rank/gpu_figures.h"
#include "worker/rank/rank_device.h"
#include "worker/rank/rank_memory.h"
#include "worker/rank/skipped_steps.h"
#include "worker/rank/step_pace.h"
#include "worker/rank/work_meter.h"
#include "worker/trace/recorder.h"

namespace trainyard::engine {
namespace {

int threads_of(const TrainContext& context) {
  if (context.spec.runtime.threads > 0) return static_cast<int>(context.spec.runtime.threads);
  return std::max(1, usable_cpus() / std::max(1, context.local_world_size));
}

/// One rank's run; the methods are the phases in order.
class Run {
 public:
  explicit Run(const TrainContext& context)
      : context_(context), spec_(context.spec), groups_(context.groups), skipped_(context) {}

  void abort(const Error& reason) { groups_->abort(reason); }

  /// Ends what the ranks' devices do together. True where this rank's device cannot be freed.
  bool close(const Error* reason) {
    Status closed;
    if (transport_) closed = transport_->close();
    const bool transport_is_stuck = transport_ && transport_->is_stuck();
    // A peer may have noticed first that this rank's GPU hangs. After a good end a trace is told of
    // the last update.
    if (device_ && !device_->is_stuck() && !transport_is_stuck) {
      Status done = device_->wait();
      if (closed) closed = std::move(done);
    }
    const bool is_stuck = transport_is_stuck || (device_ && device_->is_stuck());
    if (!is_stuck) {
      if (!closed && reason == nullptr) context_.log->warning(closed.error().message);
      return false;
    }
    if (reason == nullptr && !closed) reason = &closed.error();
    if (context_.end_at_once && reason != nullptr) context_.end_at_once(*reason);
    return true;
  }

  Result<TrainOutcome> operator()() {
    context_.progress->set_phase(contract::Phase::kRestoring);
    TRAINYARD_TRY(open_files());
    TRAINYARD_TRY(build_engine());
    TRAINYARD_TRY(begin_generation());
    TRAINYARD_ASSIGN(stopping_, anybody_asked_to_stop());
    if (stopping_) return stop_at_once();
    TRAINYARD_TRY(open_batches());
    context_.progress->set_phase(contract::Phase::kTraining);
    if (context_.meter != nullptr) context_.meter->begin(trace::monotonic_ns());
    TRAINYARD_TRY(make_up_for_evaluation());
    while (!is_over() && !stopping_) {
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
  /// The device first: what is missing on a node without one is no file.
  Status open_files() {
    const bool goes_on = context_.resume.parent_generation.has_value();
    const std::filesystem::path checkpoints =
        goes_on ? context_.checkpoint_root : std::filesystem::path();
    WantedDevice wanted{.named = spec_.device, .sees_gpus = count_visible_gpus() > 0};
    if (wanted.named == api::DeviceKind::kAuto) wanted.recorded = device_of_run(spec_, checkpoints);
    const auto tell = [this](const std::string& doubt) {
      if (context_.groups->world->rank() == 0) warn(context_, doubt);
    };
    TRAINYARD_ASSIGN(spec_.device, agree_on_device(wanted, context_.local_rank, context_.cuda,
                                                   *context_.groups->world, tell));
    tell(doubt_of_numerics(spec_));
    TRAINYARD_ASSIGN(inputs_, open_inputs(spec_, checkpoints));
    return {};
  }

  Status build_engine() {
    TRAINYARD_TRY(resolve_spec(spec_, *inputs_));
    tell_of_import();
    if (inputs_->validation) {
      TRAINYARD_TRY(check_held_out(*inputs_->validation, &inputs_->tokens, spec_.model.vocab,
                                   "engine.data.validation"));
      if (context_.groups->world->rank() == 0) warn(context_, inputs_->shared_text);
    }
    facts_ = facts_of(*inputs_);
    if (context_.groups->world->rank() == 0) {
      TRAINYARD_TRY(check_export(spec_, facts_, {.job_uid = context_.job_uid}));
    }
    TRAINYARD_TRY(check_plan());
    const auto tell = [log = context_.log](const std::string& line) { log->warning(line); };
    TRAINYARD_ASSIGN(device_, make_rank_device(spec_, context_.local_rank, threads_of(context_),
                                               context_.cuda, context_.peer_timeout, tell));
    TRAINYARD_TRY(move_groups());
    StepObserver observer{.spans = context_.spans};
    observer.on_instruction = [this](int id, const Instruction& instruction, int64_t level) {
      context_.progress->position({name_of(instruction.kind), instruction.micro_batch,
                                   std::max(instruction.layer, instruction.unit)});
      context_.progress->level(level);
      work_.instruction(instruction.kind, context_.clock->mono());
      context_.progress->instruction(id);
    };
    observer.on_end = [this](int64_t level) { context_.progress->level(level); };
    observer.on_wait = [this](bool waits) {
      context_.progress->waits(waits);
      work_.wait(waits, context_.clock->mono());
    };
    TRAINYARD_ASSIGN(engine_, Engine::create({.spec = spec_,
                                              .device = device_.get(),
                                              .groups = groups_,
                                              .observer = std::move(observer)}));
    context_.progress->set_total_steps(spec_.steps);
    state_ = std::make_unique<EngineState>(*engine_, to_hex(inputs_->tokens.identity()), facts_);
    const MemoryReport memory = engine_->memory();
    count_memory(memory);
    if (context_.groups->world->rank() == 0) {
      const api::NumericsSpec& numerics = engine_->spec().numerics;
      context_.log->info("model ready", {{"parameters", engine_->model().parameter_count()},
                                         {"parameter_state_bytes", memory.parameters},
                                         {"activation_bytes", memory.activations},
                                         {"grain_tokens", numerics.grain_tokens},
                                         {"key_block", numerics.key_block},
                                         {"tensor_chunks", *numerics.tensor_chunks},
                                         {"device", device_->name()}});
      const std::string unused =
          unused_parameters(engine_->model(), engine_->spec().data.sequence_length);
      if (!unused.empty()) {
        context_.log->info("parameters that no sequence reaches", {{"parameters", unused}});
      }
    }
    return {};
  }

  /// Once per reason.
  void tell_of_graphs() {
    if (spec_.device != api::DeviceKind::kCuda || context_.groups->world->rank() != 0) return;
    const std::string reason = why_no_graphs(*device_, context_.groups->world->size());
    if (reason.empty() || reason == std::exchange(told_of_graphs_, reason)) return;
    context_.log->info("steps are not launched as CUDA graphs", {{"reason", reason}});
  }

  /// To where the device's memory is.
  Status move_groups() {
    if (spec_.device != api::DeviceKind::kCuda || context_.groups->world->size() == 1) return {};
    const bool by_nccl = spec_.runtime.transport == api::Transport::kNccl;
    if (by_nccl) {
      TRAINYARD_ASSIGN(transport_, context_.cuda->nccl(*device_, *context_.groups->world,
                                                       {.deadline = context_.peer_timeout}));
    }
    const auto make = [this](comm::Communicator& host, comm::GroupUse use) {
      return transport_ ? transport_->make(host, use)
                        : comm::StagedCommunicator::make(host, *device_, context_.progress);
    };
    TRAINYARD_ASSIGN(device_groups_, context_.groups->on_device(make));
    if (by_nccl) TRAINYARD_TRY(transport_->open());
    if (!by_nccl && context_.groups->world->rank() == 0) warn(context_, doubt_of_staging(*plan_));
    groups_ = &*device_groups_;
    return {};
  }

  /// Plans all ranks and compares those of this machine with its memory. Nobody allocates before
  /// all have compared: each would find what another one has taken.
  Status check_plan() {
    const int64_t world = context_.groups->world->size();
    const int64_t local = std::clamp<int64_t>(context_.local_world_size, 1, world);
    TRAINYARD_ASSIGN(
        plan_,
        plan_job(spec_, {.ranks = world,
                         .one_host = local == world,
                         .kernel_scratch_bytes = cpu_scratch_bytes(threads_of(context_)),
                         .writes_checkpoints = !context_.checkpoint_root.empty(),
                         .keeps_states = keeps_states(context_),
                         .ranks_with_copies = ranks_with_copies(context_),
                         .trace_ring_bytes = context_.traces ? trace::Recorder::kRingBytes : 0}));
    const int64_t first = context_.groups->world->rank() / local * local;
    TRAINYARD_ASSIGN(const std::string doubt,
                     check_memory(*plan_, {first, std::min(first + local, world)}, spec_,
                                  room_for_ranks(context_, local)));
    warn(context_, doubt);
    if (spec_.device == api::DeviceKind::kCuda) {
      TRAINYARD_ASSIGN(const CudaFacts gpu, context_.cuda->find(context_.local_rank));
      TRAINYARD_ASSIGN(const std::string gpu_doubt,
                       check_gpu_memory(*plan_, spec_, gpu.memory_bytes));
      gpu_figures_ = GpuFigures(*plan_, gpu.name);
      warn(context_, gpu_doubt);
    }
    return context_.groups->world->barrier()->wait();
  }

  /// What is not as whoever made the model would expect.
  void tell_of_import() const {
    const bool gone = inputs_->shape && !inputs_->imported;
    if (gone) {
      context_.log->info("engine.model.import is missing; a checkpoint replaces it",
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
    warn(context_, doubt);
  }

  /// Weights: from the newest state of the parent generation, in memory or in a good checkpoint,
  /// else from another run's, imported or fresh. Restoring comes first: making weights that a
  /// checkpoint replaces would cost every recovery seconds.
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

  /// Nothing is lost: its state is as it was found. One that was in memory alone goes to the disk.
  Result<TrainOutcome> stop_at_once() {
    TrainOutcome outcome{.checkpointed = true, .result = {.step = engine_->steps_done()}};
    if (!checkpoints_ || !checkpoints_->is_unsaved()) return outcome;
    TRAINYARD_TRY(checkpoints_->save());
    TRAINYARD_ASSIGN(outcome.checkpointed, checkpoints_->finish(false));
    return outcome;
  }

  Status make_weights() {
    if (spec_.start_from) {
      checkpoint::PosixFileSystem files;
      TRAINYARD_ASSIGN(const auto reader, open_start(files, *spec_.start_from));
      const bool state = spec_.start_from->what == api::StartWhat::kState;
      if (state && context_.groups->world->rank() == 0) {
        warn(context_, doubt_of_horizon(*reader, spec_));
        warn(context_, doubt_of_device(*reader, spec_));
      }
      Status started = state_->start_from(*reader, context_.stop_requested);
      if (started) return started;
      return started.error().with_context("engine.startFrom.checkpoint: " +
                                          spec_.start_from->checkpoint);
    }
    if (inputs_->imported) return import_parameters(*inputs_->imported, *engine_);
    if (inputs_->shape) {
      return Error{
          ErrorCode::kNotFound,
          "engine.model.import: " + spec_.model.import_path +
              " is missing, and no checkpoint could be restored instead: put the folder back"};
    }
    return engine_->initialize();
  }

  Status open_batches() {
    TRAINYARD_ASSIGN(
        auto loader,
        data::BatchLoader::open(inputs_->tokens, {.seed = static_cast<uint64_t>(spec_.seed),
                                                  .tokens_per_sample = spec_.data.sequence_length,
                                                  .batch = partition(),
                                                  .data_rank = context_.groups->data_rank(),
                                                  .first_step = engine_->steps_done(),
                                                  .end_of_text = inputs_->end_of_text,
                                                  .timeout = context_.data_timeout}));
    loader_ = std::make_unique<data::BatchLoader>(std::move(loader));
    if (!inputs_->validation) return {};
    TRAINYARD_ASSIGN(evaluations_, Evaluations::open(context_, *inputs_, *engine_, *state_));
    return {};
  }

  data::BatchPartition partition() const {
    return partition_of(spec_, context_.groups->data_ranks());
  }

  Status step() {
    const MonoTime begin = context_.clock->mono();
    pace_.begin(begin);
    work_.begin_step();
    TRAINYARD_ASSIGN(const StepReport report, engine_->step(*loader_, context_.stop_requested));
    const MonoTime end = context_.clock->mono();
    tell_of_graphs();
    pace_.end(end, work_.end_step(end), spec_.batch.global_sequences * spec_.data.sequence_length);
    // A rank on a GPU only enqueues its passes.
    if (spec_.device == api::DeviceKind::kCpu)
      context_.progress->work_seconds(pace_.work_seconds());
    skipped_.count(engine_->steps_done(), report);
    state_->set_unchanged(skipped_.unchanged());
    // A run whose every step is skipped learns nothing, however long it goes on.
    if (skipped_.are_too_many()) return diverged(skipped_.text(), "");
    stopping_ = report.stop_requested;
    if (!report.skipped) state_->set_loss(report.loss);
    const int64_t samples = engine_->samples_consumed();
    // The ranks of a pipeline, of a context group and of a tensor group train the same samples: the
    // first counts them.
    const layout::Coordinate& at = context_.groups->at;
    const bool counts = at.pp == 0 && at.cp == 0 && at.tp == 0;
    const int64_t own_samples = counts ? partition().share(context_.groups->data_rank()).size() : 0;
    context_.progress->count_step(end - begin, own_samples * spec_.data.sequence_length,
                                  report.skipped);
    const double rate = pace_.tokens_per_second();
    const auto memory = static_cast<double>(gpu_figures_.memory_in_use(*device_, end));
    context_.progress->step_done(
        {.step = engine_->steps_done(),
         .samples_consumed = samples,
         .tokens_consumed = samples * spec_.data.sequence_length,
         .figures = {.loss = report.loss,
                     .learning_rate = report.learning_rate,
                     .gradient_norm = report.gradient_norm,
                     .tokens_per_second = rate,
                     .step_seconds = pace_.step_seconds(),
                     .model_flops_utilization = gpu_figures_.utilization(rate),
                     .gpu_memory_bytes = memory}});
    return {};
  }

  /// `what` went wrong; `otherwise`, which may be empty, what else it may be and what to do then.
  /// What to go on from is said last: of a long message a status keeps the end.
  Error diverged(const std::string& what, const std::string& otherwise) const {
    return {ErrorCode::kInvalidData,
            "training: " + what + ": the model has diverged" + otherwise +
                "; lower learningRate or gradientClip, or lengthen the warmup, and " +
                (checkpoints_ ? checkpoints_->advice() : "start a new run")};
  }

  /// A run is complete when its last step was done and leaves a model that computes.
  Status check_end() {
    if (!is_over()) return {};
    if (skipped_.in_a_row() > 0) {
      // One batch in a thousand may be too large for a good model: its state is kept.
      if (checkpoints_) TRAINYARD_TRY(checkpoints_->finish(true));
      return diverged(skipped_.text(),
                      " (or, where only a batch was too large, raise engine.steps)");
    }
    if (!evaluations_) return check_model();
    if (!evaluations_->is_done() || std::isfinite(evaluations_->loss())) return {};
    return diverged("the loss on engine.data.validation after the last step, " +
                        std::to_string(engine_->steps_done()) + ", is not finite",
                    "");
  }

  /// Without validation data nothing else would show that the last update has made the model
  /// diverge.
  Status check_model() {
    TRAINYARD_ASSIGN(const double loss, loss_of_windows(*inputs_, *engine_));
    if (std::isfinite(loss)) return {};
    return diverged("the loss on engine.data.tokens after the last step, " +
                        std::to_string(engine_->steps_done()) + ", is not finite",
                    "");
  }

  /// After the last step, be it that of the manifest or of early stopping.
  bool is_over() const {
    return engine_->steps_done() == spec_.steps || state_->early_stop().is_over();
  }

  Status evaluate_when_due() {
    if (!evaluations_ || stopping_) return {};
    if (!evaluations_->is_due() && !is_over()) return {};
    return evaluate();
  }

  /// One that was cut short counts for early stopping all the same: restarts change no decision.
  Status make_up_for_evaluation() {
    if (!evaluations_ || !evaluations_->is_missed()) return {};
    TRAINYARD_TRY(evaluate());
    const bool unsaved = checkpoints_ && checkpoints_->is_unsaved();
    return evaluations_->take_best() && unsaved ? checkpoints_->save() : Status();
  }

  /// A complete run has been evaluated at its last step: also one that goes on from the checkpoint
  /// of that step, because it was asked to stop in it.
  Status evaluate_at_end() {
    if (!is_over() || is_evaluated() || (stopping_ && checkpoints_)) return {};
    return evaluate();
  }

  bool is_evaluated() const { return !evaluations_ || evaluations_->is_done(); }

  Status evaluate() {
    // Without a checkpoint the run could not go on from here.
    TRAINYARD_ASSIGN(const bool stopped,
                     evaluations_->evaluate(skipped_.in_a_row() == 0,
                                            checkpoints_ ? context_.stop_requested : StopAsked()));
    stopping_ = stopping_ || stopped;
    return {};
  }

  Status checkpoint_when_due() {
    if (!checkpoints_) return {};
    const bool is_last = stopping_ || is_over();
    return checkpoints_->after_step(is_last || (evaluations_ && evaluations_->take_best()));
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
    const comm::Counters counters = groups_->counters();
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
    TrainOutcome outcome{.complete = is_over() && is_evaluated()};
    // What follows takes as long as it takes, also without checkpoints: it is no step that hangs.
    context_.progress->set_phase(contract::Phase::kCheckpointing);
    if (checkpoints_) {
      TRAINYARD_ASSIGN(outcome.checkpointed, checkpoints_->finish(outcome.complete));
      if (outcome.complete && !outcome.checkpointed) {
        return Error{ErrorCode::kIo, "stopped before the last checkpoint, step " +
                                         std::to_string(engine_->steps_done()) +
                                         ", could be written to " +
                                         context_.checkpoint_root.string() +
                                         " (see the errors above); the steps since the previous "
                                         "checkpoint are lost, so the run is not complete"};
      }
    }
    count_turn();
    outcome.result = {.step = engine_->steps_done(),
                      .final_loss = state_->loss(),
                      .validation_loss = evaluations_ ? evaluations_->loss()
                                                      : std::numeric_limits<double>::quiet_NaN(),
                      .skipped_steps = engine_->steps_done() - engine_->optimizer().updates()};
    if (outcome.complete) {
      // It gathers every state: a run that was stopped has no time for that.
      TRAINYARD_ASSIGN(const Hash128 hash, state_->hash());
      outcome.result.state_hash = to_hex(hash);
      // Before the export, for which nobody waits.
      TRAINYARD_ASSIGN(outcome.result.peak_memory, peak_memory(*context_.groups->world, *plan_));
    }
    BestModel best(context_, *state_);
    if (outcome.complete) {
      TRAINYARD_ASSIGN(outcome.result.best, best.find(checkpoints_.get()));
      outcome.result.stopped_early = engine_->steps_done() < spec_.steps;
    }
    if (outcome.complete && !spec_.export_to.hugging_face.empty()) {
      if (outcome.result.best) TRAINYARD_TRY(best.load());
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

  const TrainContext& context_;
  api::EngineSpec spec_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::DeviceTransport> transport_;  ///< null: through the host's memory
  std::optional<comm::Groups> device_groups_;
  const comm::Groups* groups_;  ///< those, or the context's
  std::optional<Inputs> inputs_;
  std::optional<MemoryPlan> plan_;
  std::unique_ptr<Engine> engine_;
  hf::RunFacts facts_;
  std::unique_ptr<EngineState> state_;
  std::unique_ptr<CheckpointSchedule> checkpoints_;
  std::unique_ptr<data::BatchLoader> loader_;
  std::unique_ptr<Evaluations> evaluations_;  ///< null: nothing is held out
  WorkMeter work_;
  StepPace pace_;
  GpuFigures gpu_figures_;
  SkippedSteps skipped_;
  std::string told_of_graphs_;
  bool stopping_ = false;
};

}  // namespace

void warn(const TrainContext& context, const std::string& doubt) {
  if (doubt.empty()) return;
  context.log->warning(doubt);
  if (context.warn) context.warn(doubt);
}

Result<TrainOutcome> train(const TrainContext& context) {
  auto run = std::make_unique<Run>(context);
  Result<TrainOutcome> outcome = (*run)();
  // Before the memory that peers still write to goes away.
  if (!outcome) run->abort(outcome.error());
  const bool is_stuck = run->close(outcome ? nullptr : &outcome.error());
  if (is_stuck) (void)run.release();
  return outcome;
}

}  // namespace trainyard::engine
