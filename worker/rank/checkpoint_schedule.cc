#include "worker/rank/checkpoint_schedule.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "worker/checkpoint/generation.h"
#include "worker/checkpoint/store.h"
#include "worker/job/same_run.h"

namespace trainyard::engine {
namespace {

/// Beyond what the writer allows a save: its talk with the other ranks, each wait of which has the
/// group's deadline.
constexpr std::chrono::minutes kTalkTimeout{5};

/// Between two tries to write the last checkpoint: growing, and far below what counts as a stall.
constexpr std::chrono::seconds kFirstPause{1};
constexpr std::chrono::seconds kLongestPause{10};
/// How soon a pause ends when a rank is asked to stop.
constexpr std::chrono::milliseconds kStopLook{100};

/// More are told each time, and not kept.
constexpr size_t kMaxNotesTold = 64;

}  // namespace

CheckpointSchedule::~CheckpointSchedule() = default;

Result<std::unique_ptr<CheckpointSchedule>> CheckpointSchedule::begin(const TrainContext& context,
                                                                      EngineState& state) {
  auto schedule = std::unique_ptr<CheckpointSchedule>(new CheckpointSchedule(context, state));
  TRAINYARD_ASSIGN(comm::Communicator * background, context.groups->background());
  schedule->group_ = std::make_unique<checkpoint::CommunicatorCommitGroup>(*background);
  std::string doubt;
  TRAINYARD_ASSIGN(
      checkpoint::StartedGeneration started,
      checkpoint::start_generation(*schedule->files_,
                                   {.root = context.checkpoint_root,
                                    .job_uid = context.job_uid,
                                    .generation = context.resume.generation,
                                    .parent_generation = context.resume.parent_generation,
                                    .committed_step = context.resume.committed_step},
                                   *schedule->group_, [&](checkpoint::CheckpointReader& reader) {
                                     doubt = doubt_of_horizon(reader, state.engine().spec());
                                     return state.restore(reader, context.stop_requested);
                                   }));
  if (started.resumed_from && !doubt.empty() && context.groups->world->rank() == 0)
    started.notes.push_back(doubt);
  for (const std::string& note : started.notes) {
    context.log->warning(note);
    if (context.warn && context.groups->world->rank() == 0) context.warn(note);
  }
  schedule->restored_ = started.resumed_from.has_value();
  if (started.resumed_from) {
    schedule->committed_step_ = started.resumed_from->id.step;
    schedule->begun_step_ = schedule->committed_step_;
    schedule->newest_done_ = schedule->committed_step_;
    context.progress->checkpoint_step(schedule->committed_step_);
    if (context.groups->world->rank() == 0) {
      context.log->info("resumed", {{"step", schedule->committed_step_},
                                    {"generation", context.resume.generation}});
    }
  }
  schedule->writer_ = std::make_unique<checkpoint::CheckpointWriter>(
      schedule->files_, *schedule->group_,
      checkpoint::WriterOptions{
          .root = context.checkpoint_root,
          .retention = {.keep_last = context.checkpoint_policy.keep_last},
          .proven_step = [proven = schedule->proven_step_] { return proven->load(); },
          .notes = schedule->notes_,
          .spans = context.spans},
      std::move(started));
  return schedule;
}

Status CheckpointSchedule::settle(const checkpoint::CheckpointOutcome& outcome) {
  tell_notes();
  if (outcome.status) {
    count_commit(outcome);
    return {};
  }
  if (outcome.ends_generation()) return outcome.status;
  count_failure(outcome);
  return {};
}

/// What hinders each clean-up is told once.
void CheckpointSchedule::tell_notes() {
  for (std::string& note : notes_->take()) {
    if (std::find(told_.begin(), told_.end(), note) != told_.end()) continue;
    context_.log->warning(note);
    if (context_.warn) context_.warn(note);
    if (told_.size() < kMaxNotesTold) told_.push_back(std::move(note));
  }
}

void CheckpointSchedule::count_commit(const checkpoint::CheckpointOutcome& outcome) {
  committed_step_ = outcome.step;
  figures_.commits += 1;
  figures_.bytes = outcome.bytes;
  figures_.bytes_total += outcome.bytes;
  figures_.committed_unix_s =
      std::chrono::duration<double>(context_.clock->now().time_since_epoch()).count();
  figures_.commit_s = outcome.seconds;
  figures_.write_s = outcome.write_s;
  figures_.write_cpu_s = outcome.write_cpu_s;
  context_.progress->checkpoints(figures_);
  context_.progress->checkpoint_step(outcome.step);
  if (context_.groups->world->rank() != 0) return;
  context_.log->info("checkpoint committed", {{"step", outcome.step},
                                              {"seconds", outcome.seconds},
                                              {"stall_seconds", figures_.stall_s},
                                              {"write_seconds", outcome.write_s},
                                              {"write_cpu_seconds", outcome.write_cpu_s},
                                              {"bytes", outcome.bytes},
                                              {"directory", outcome.directory}});
}

void CheckpointSchedule::count_failure(const checkpoint::CheckpointOutcome& outcome) {
  figures_.failures += 1;
  figures_.failed_step = outcome.step;
  figures_.failure = outcome.status.error().message;
  context_.progress->checkpoints(figures_);
  const std::string consequence = keeps_trying_
                                      ? "the trained state is kept and written again until that "
                                        "succeeds or the run is stopped"
                                      : "training goes on and the one before stays";
  context_.log->error("checkpoint abandoned; " + consequence,
                      {{"step", outcome.step},
                       {"failures", figures_.failures},
                       {"error", outcome.status.error().message}});
  if (!context_.warn) return;
  context_.warn("checkpoint of step " + std::to_string(outcome.step) + " was not written; " +
                consequence + ": " + outcome.status.error().message);
}

Status CheckpointSchedule::drain() {
  if (!writer_->busy()) {
    if (const auto outcome = writer_->poll()) return settle(*outcome);
    return {};
  }
  const std::chrono::milliseconds timeout = checkpoint::WriterOptions{}.save_limit + kTalkTimeout;
  const auto outcome = writer_->wait(timeout);
  if (!outcome) {
    return Error{
        ErrorCode::kDeadline,
        "checkpoint of step " + std::to_string(begun_step_) + ": not ended within " +
            std::to_string(std::chrono::duration_cast<std::chrono::minutes>(timeout).count()) +
            " minutes"};
  }
  return settle(*outcome);
}

Status CheckpointSchedule::after_step(bool last) {
  if (const auto outcome = writer_->poll()) TRAINYARD_TRY(settle(*outcome));
  tell_notes();
  const int64_t steps_done = state_.engine().steps_done();
  const bool skipped = state_.step() < steps_done;
  if (!skipped) proven_step_->store(std::exchange(newest_done_, steps_done));
  const int64_t every = context_.checkpoint_policy.every_steps;
  due_ = due_ || (every > 0 && steps_done % every == 0);
  // Not before the first step, which somebody waits for.
  if (every > 0) state_.claim_buffer();
  // Before the first step that is done there is nothing to keep.
  const bool begins = last || (due_ && !skipped);
  if (!begins || state_.step() <= std::max<int64_t>(begun_step_, 0)) return {};
  due_ = false;
  const MonoTime begin = context_.clock->mono();
  // Whether the one before has ended may differ between ranks; waiting keeps their decisions the
  // same. A checkpoint that takes longer than the interval paces training, and its time shows.
  const trace::ScopedSpan span(
      context_.spans, trace::Track::kStep,
      {.activity = trace::Activity::kCheckpointWait, .step = state_.step()});
  context_.progress->set_phase(contract::Phase::kCheckpointing);
  TRAINYARD_TRY(drain());
  TRAINYARD_TRY(start());
  context_.progress->set_phase(contract::Phase::kTraining);
  figures_.stall_s = std::chrono::duration<double>(context_.clock->mono() - begin).count();
  figures_.stall_total_s += figures_.stall_s;
  context_.progress->checkpoints(figures_);
  return {};
}

/// Copies the state and lets the writer begin; a rank that cannot copy tells the others.
Status CheckpointSchedule::start() {
  begun_step_ = state_.step();
  Result<checkpoint::Snapshot> snapshot = state_.snapshot();
  if (snapshot) return writer_->begin(*std::move(snapshot));
  if (checkpoint::ends_generation(snapshot.error().code)) return snapshot.error();
  return writer_->decline(begun_step_, snapshot.error());
}

/// Waits, but no longer than until a rank is asked to stop; whether one is.
Result<bool> CheckpointSchedule::asked_to_stop_within(Duration pause) {
  const MonoTime end = context_.clock->mono() + pause;
  while (true) {
    // Clocks differ between ranks: they go on together.
    const bool stop = context_.stop_requested();
    TRAINYARD_ASSIGN(const bool stopping, group_->any(stop));
    if (stopping) return true;
    const Duration left = end - context_.clock->mono();
    TRAINYARD_ASSIGN(const bool waiting, group_->any(left > Duration::zero()));
    if (!waiting) return false;
    std::this_thread::sleep_for(std::clamp<Duration>(left, Duration::zero(), kStopLook));
  }
}

Result<bool> CheckpointSchedule::finish(bool keep_trying) {
  const trace::ScopedSpan span(
      context_.spans, trace::Track::kStep,
      {.activity = trace::Activity::kCheckpointWait, .step = state_.step()});
  keeps_trying_ = keep_trying;
  TRAINYARD_TRY(drain());
  // Where no step was done nothing has been trained, and there is nothing to keep.
  const auto is_kept = [this] { return committed_step_ == state_.step() || state_.step() == 0; };
  for (Duration pause = kFirstPause; keep_trying && !is_kept();
       pause = std::min<Duration>(2 * pause, kLongestPause)) {
    TRAINYARD_ASSIGN(const bool stopping, asked_to_stop_within(pause));
    if (stopping) break;
    TRAINYARD_TRY(start());
    TRAINYARD_TRY(drain());
  }
  return is_kept();
}

std::vector<std::string> CheckpointSchedule::close() {
  writer_.reset();
  tell_notes();
  return told_;
}

std::string CheckpointSchedule::advice() const {
  constexpr char kAnew[] = "no checkpoint is older than that: begin anew";
  const std::filesystem::path& root = context_.checkpoint_root;
  const auto stored = checkpoint::load_lineage(*files_, root);
  const auto found = checkpoint::find_checkpoints(*files_, root);
  if (!stored || !found) return kAnew;
  const auto lineage = checkpoint::Lineage::of(context_.resume.generation, stored->records);
  if (!lineage) return kAnew;
  std::string newer;
  for (const checkpoint::CheckpointId& id : checkpoint::newest_first(*found, *lineage)) {
    const std::string name = checkpoint::directory_name(id);
    const bool proven = id.step < state_.step();
    if (proven &&
        checkpoint::open_own(*files_, root, id, stored->records, checkpoint::Verify::kManifest)) {
      return "go on from " + name + (newer.empty() ? "" : " (move away " + newer + ")");
    }
    newer += (newer.empty() ? "" : ", ") + name;
  }
  return kAnew;
}

}  // namespace trainyard::engine
