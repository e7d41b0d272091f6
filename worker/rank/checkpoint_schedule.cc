#include "worker/rank/checkpoint_schedule.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "worker/checkpoint/generation.h"
#include "worker/checkpoint/store.h"
#include "worker/job/same_run.h"
#include "worker/rank/rank_memory.h"

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

/// Of the time of steps that states in memory may take.
constexpr double kMemoryShare = 0.01;
/// Steps between two of them, however much one takes.
constexpr double kLongestInterval = 1e6;

/// More are told each time, and not kept.
constexpr size_t kMaxNotesTold = 64;

}  // namespace

CheckpointSchedule::~CheckpointSchedule() = default;

Result<std::unique_ptr<CheckpointSchedule>> CheckpointSchedule::begin(const TrainContext& context,
                                                                      EngineState& state) {
  auto schedule = std::unique_ptr<CheckpointSchedule>(new CheckpointSchedule(context, state));
  TRAINYARD_ASSIGN(comm::Communicator * background, context.groups->background());
  schedule->group_ = std::make_unique<checkpoint::CommunicatorCommitGroup>(*background);
  TRAINYARD_TRY(schedule->use_memory());
  std::string doubt;
  std::string device_doubt;
  TRAINYARD_ASSIGN(
      checkpoint::StartedGeneration started,
      checkpoint::start_generation(
          *schedule->files_,
          {.root = context.checkpoint_root,
           .job_uid = context.job_uid,
           .generation = context.resume.generation,
           .parent_generation = context.resume.parent_generation,
           .committed_step = context.resume.committed_step},
          *schedule->group_,
          [&](checkpoint::CheckpointReader& reader) {
            doubt = doubt_of_horizon(reader, state.engine().spec());
            device_doubt = doubt_of_device(reader, state.engine().spec());
            return state.restore(reader, context.stop_requested);
          },
          {.offers = schedule->offers(),
           .restore = [&](const checkpoint::CheckpointId& id) { return schedule->recall(id); }}));
  for (const std::string& note : {doubt, device_doubt}) {
    if (started.resumed_from && !note.empty() && context.groups->world->rank() == 0)
      started.notes.push_back(note);
  }
  for (const std::string& note : started.notes) {
    context.log->warning(note);
    if (context.warn && context.groups->world->rank() == 0) context.warn(note);
  }
  schedule->restored_ = started.resumed_from || started.memory_step;
  if (started.resumed_from) {
    schedule->committed_step_ = started.resumed_from->id.step;
    schedule->begun_step_ = schedule->committed_step_;
    context.progress->checkpoint_step(schedule->committed_step_);
  }
  schedule->newest_done_ = started.memory_step.value_or(schedule->committed_step_);
  schedule->copy_restored(started);
  // One rank may have restored a state in memory that another one found damaged.
  if (!schedule->restored_ && !state.offers().empty()) TRAINYARD_TRY(state.start_over());
  if (schedule->restored_ && context.groups->world->rank() == 0) {
    context.log->info(started.memory_step ? "resumed from memory" : "resumed",
                      {{"step", schedule->newest_done_},
                       {"generation", context.resume.generation},
                       {"checkpoint_step", schedule->committed_step_}});
  }
  state.set_generation(started.record);
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

/// Where one rank cannot keep states in memory none does: a restart then goes back to the disk.
Status CheckpointSchedule::use_memory() {
  const std::optional<int64_t> every = context_.checkpoint_policy.memory_every_steps;
  if (every == 0) return {};
  TRAINYARD_ASSIGN(const std::optional<checkpoint::SlotShape> ward, shape_of_ward());
  Status kept;
  if (context_.memory_fd >= 0) {
    kept = state_.keep_in_memory(context_.memory_fd, context_.job_uid, ward);
    if (!kept) context_.log->warning("no states in memory", {{"error", kept.error().message}});
  }
  TRAINYARD_ASSIGN(const bool lacks, group_->any(!state_.keeps_in_memory()));
  if (lacks) return {};
  memory_every_ = every;
  if (!ward) return {};
  TRAINYARD_ASSIGN(comm::Communicator * across,
                   context_.groups->across_nodes(ranks_with_copies(context_)));
  replicas_ = std::make_unique<StateReplicas>(*across, *state_.memory());
  return {};
}

/// What the rank whose copies are kept here says of its states; nullopt: no copies are made.
Result<std::optional<checkpoint::SlotShape>> CheckpointSchedule::shape_of_ward() {
  const int distance = ranks_with_copies(context_);
  if (distance == 0) return std::optional<checkpoint::SlotShape>();
  comm::Communicator& world = *context_.groups->world;
  const auto size = static_cast<size_t>(world.size());
  const auto own = static_cast<size_t>(world.rank());
  std::vector<checkpoint::SlotShape> shapes(size);
  shapes[own] = state_.memory_shape(context_.job_uid);
  const std::vector<int64_t> one_each(size, sizeof(checkpoint::SlotShape));
  TRAINYARD_TRY(
      world.all_gather(std::as_writable_bytes(std::span(shapes)), one_each, DType::kUint8)->wait());
  return std::optional(shapes[(own + size - static_cast<size_t>(distance)) % size]);
}

checkpoint::RankOffers CheckpointSchedule::offers() const {
  checkpoint::RankOffers offers{.own = state_.offers()};
  if (!replicas_) return offers;
  const int size = context_.groups->world->size();
  offers.ward = (context_.groups->world->rank() + size - ranks_with_copies(context_)) % size;
  offers.kept = state_.memory()->ward_offers();
  return offers;
}

/// Restores a state in memory, one of this rank's own or a copy that its keeper has. A rank that is
/// asked to stop meanwhile goes on for a while: the state may be in memory alone, and the other
/// half of the time is left to write it to the disk. A fetch that ends the generation ends it on
/// all ranks at once: to ask them first would mean to wait for a keeper that may stand still.
Status CheckpointSchedule::recall(const checkpoint::CheckpointId& id) {
  if (replicas_) {
    const Duration half = Duration(context_.checkpoint_policy.preemption_checkpoint) / 2;
    const Result<bool> fetched = replicas_->fetch(id, {context_.stop_requested, half});
    if (!fetched) {
      if (checkpoint::ends_generation(fetched.error().code))
        context_.groups->abort(fetched.error());
      return fetched.error();
    }
    if (*fetched)
      context_.log->info("state fetched from the memory of the next node", {{"step", id.step}});
  }
  return state_.recall(id);
}

/// Sends the restored state to the next node at once: a node can be lost again before the next
/// state is due. Until all have it, the newest state that all have copies of stays.
void CheckpointSchedule::copy_restored(const checkpoint::StartedGeneration& started) {
  if (!replicas_ || !started.memory_step) return;
  if (started.copied) {
    state_.memory()->keep_copied(*started.copied);
    if (started.copied->step == *started.memory_step) return;
  }
  replicas_->begin_round(true);
}

Status CheckpointSchedule::remember_when_due() {
  if (memory_every_ == 0) return {};
  const int64_t step = state_.engine().steps_done();
  const MonoTime begin = context_.clock->mono();
  if (step_began_) step_time_ = std::min<Duration>(step_time_, begin - *step_began_);
  state_.claim_buffer();
  // What a first step takes says nothing of the others.
  memory_due_ = memory_due_ || (memory_every_ ? step % *memory_every_ == 0
                                              : step_began_ && step >= next_memory_step_);
  TRAINYARD_ASSIGN(const bool may, may_remember());
  if (memory_due_ && may) {
    memory_due_ = false;
    // The wait for the others is no cost of a state.
    const MonoTime copying = context_.clock->mono();
    Status kept = state_.remember();
    const Duration cost = context_.clock->mono() - copying;
    if (replicas_) replicas_->begin_round(static_cast<bool>(kept));
    if (!kept && checkpoint::ends_generation(kept.error().code)) return kept;
    if (!kept && !std::exchange(told_of_memory_, true)) {
      context_.log->warning("state not kept in memory", {{"error", kept.error().message}});
    }
    if (!memory_every_) {
      TRAINYARD_ASSIGN(const int64_t steps, affordable_interval(cost));
      next_memory_step_ = step + steps;
      step_time_ = Duration::max();
    }
  }
  step_began_ = context_.clock->mono();
  return {};
}

/// Whether a state that is due can be kept: not before all ranks have the copies of the one before.
/// The same on all ranks.
Result<bool> CheckpointSchedule::may_remember() {
  if (!memory_due_ || !replicas_) return true;
  using Round = StateReplicas::Round;
  TRAINYARD_ASSIGN(const int64_t least,
                   agree(static_cast<int64_t>(replicas_->round()), comm::ReduceOp::kMin));
  if (least == static_cast<int64_t>(Round::kSending)) return false;
  if (least != static_cast<int64_t>(Round::kFailed)) {
    state_.memory()->settle(least == static_cast<int64_t>(Round::kComplete));
    if (const Error damage = replicas_->failure(); !damage.message.empty())
      context_.log->warning("copy of a state not kept", {{"error", damage.message}});
    return true;
  }
  TRAINYARD_TRY(end_copies());
  return true;
}

/// After a round that has failed on any rank. The first rank on which it has tells people why.
Status CheckpointSchedule::end_copies() {
  const comm::Communicator& world = *context_.groups->world;
  const bool failed = replicas_->round() == StateReplicas::Round::kFailed;
  const Error why = replicas_->failure();
  const std::string what =
      "rank " + std::to_string(world.rank()) +
      ": states in memory are no longer copied to the next node, until the next restart";
  if (failed) context_.log->warning(what, {{"error", why.message}});
  // Ends transfers that go on, and then their group: its lost ranks are no reason to end training.
  replicas_.reset();
  context_.groups->end_across_nodes();
  state_.memory()->forget_copies();
  TRAINYARD_ASSIGN(const int64_t first,
                   agree(failed ? world.rank() : world.size(), comm::ReduceOp::kMin));
  if (first == world.rank() && context_.warn)
    context_.warn(what + ": " + why.message + "; a pod that is lost resumes from the disk");
  return {};
}

/// Steps after which a state in memory that takes `cost` has taken kMemoryShare of their time. The
/// same on all ranks: that of the rank which needs most.
Result<int64_t> CheckpointSchedule::affordable_interval(Duration cost) {
  const double step_s = std::chrono::duration<double>(step_time_).count();
  const double cost_s = std::chrono::duration<double>(cost).count();
  const double steps = std::clamp(std::ceil(cost_s / (kMemoryShare * std::max(step_s, 1e-9))), 1.0,
                                  kLongestInterval);
  return agree(static_cast<int64_t>(steps), comm::ReduceOp::kMax);
}

/// What all ranks' numbers come to.
Result<int64_t> CheckpointSchedule::agree(int64_t own, comm::ReduceOp op) {
  const Progress::Waiting waiting(*context_.progress);
  TRAINYARD_TRY(context_.groups->world
                    ->all_reduce(std::as_writable_bytes(std::span(&own, 1)), DType::kInt64, op)
                    ->wait());
  return own;
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
                                      : "training continues and the previous checkpoint stays";
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
  const auto outcome = [&] {
    const Progress::Waiting waiting(*context_.progress);
    return writer_->wait(timeout);
  }();
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
  if (!skipped) TRAINYARD_TRY(remember_when_due());
  const int64_t every = context_.checkpoint_policy.every_steps;
  due_ = due_ || (every > 0 && steps_done % every == 0);
  // Not before the first step, which somebody waits for.
  if (every > 0) state_.claim_buffer();
  // Before the first step that is done there is nothing to keep.
  const bool begins = last || (due_ && !skipped);
  if (!begins || state_.step() <= std::max<int64_t>(begun_step_, 0)) return {};
  due_ = false;
  return save();
}

Status CheckpointSchedule::save() {
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
  const Progress::Waiting waiting(*context_.progress);
  while (true) {
    // Clocks differ between ranks: they go on together.
    const bool stop = context_.stop_requested();
    TRAINYARD_ASSIGN(const bool stopping, group_->any(stop));
    if (stopping) return true;
    const Duration left = end - context_.clock->mono();
    TRAINYARD_ASSIGN(const bool goes_on, group_->any(left > Duration::zero()));
    if (!goes_on) return false;
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

Result<CheckpointSchedule::History> CheckpointSchedule::history() const {
  const std::filesystem::path& root = context_.checkpoint_root;
  TRAINYARD_ASSIGN(checkpoint::StoredLineage stored, checkpoint::load_lineage(*files_, root));
  TRAINYARD_ASSIGN(const auto found, checkpoint::find_checkpoints(*files_, root));
  TRAINYARD_ASSIGN(const checkpoint::Lineage lineage,
                   checkpoint::Lineage::of(context_.resume.generation, stored.records));
  return History{std::move(stored.records), checkpoint::newest_first(found, lineage)};
}

std::string CheckpointSchedule::advice() const {
  constexpr char kAnew[] = "no checkpoint is older than that: start a new run";
  const Result<History> own = history();
  if (!own) return kAnew;
  std::string newer;
  for (const checkpoint::CheckpointId& id : own->ids) {
    const std::string name = checkpoint::directory_name(id);
    const bool proven = id.step < state_.step();
    if (proven && checkpoint::open_own(*files_, context_.checkpoint_root, id, own->records,
                                       checkpoint::Verify::kManifest)) {
      return "resume from " + name + (newer.empty() ? "" : " (move away " + newer + ")");
    }
    newer += (newer.empty() ? "" : ", ") + name;
  }
  return kAnew;
}

Result<std::unique_ptr<checkpoint::CheckpointReader>> CheckpointSchedule::open_step(
    int64_t step) const {
  TRAINYARD_ASSIGN(const History own, history());
  const auto found = std::ranges::find(own.ids, step, &checkpoint::CheckpointId::step);
  if (found == own.ids.end()) {
    return Error{ErrorCode::kNotFound, context_.checkpoint_root.string() +
                                           ": no checkpoint of step " + std::to_string(step)};
  }
  return checkpoint::open_own(*files_, context_.checkpoint_root, *found, own.records,
                              checkpoint::Verify::kManifest);
}

}  // namespace trainyard::engine
