#include "worker/checkpoint/writer.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "worker/checkpoint/json_fields.h"
#include "worker/checkpoint/shard.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint {
namespace {

using SteadyClock = std::chrono::steady_clock;

std::string error_text(const Error& error) {
  return nlohmann::ordered_json{{"error", static_cast<int>(error.code)}, {"message", error.message}}
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// The error that a rank's report or rank 0's outcome carries; nullopt when it carries none.
std::optional<Error> error_in(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return Error{ErrorCode::kInternal, "a report that cannot be read"};
  if (!json.contains("error")) return std::nullopt;
  const auto code = integer_member(json, "error", "", 0, static_cast<int>(ErrorCode::kConflict));
  const auto message = string_member(json, "message", "");
  return Error{code ? static_cast<ErrorCode>(*code) : ErrorCode::kInternal,
               message ? *message : "no message"};
}

}  // namespace

/// The thread and the state it shares with the caller; everything below `mutex` is guarded by it.
class CheckpointWriter::Impl {
 public:
  Impl(FileSystem& files, CommitGroup& group, WriterOptions options, StartedGeneration started)
      : files_(files),
        group_(group),
        options_(std::move(options)),
        started_(std::move(started)),
        previous_(started_.resumed_from),
        last_step_(previous_ ? previous_->id.step : -1),
        thread_([this](const std::stop_token& stop) { loop(stop); }) {}

  Status begin(Snapshot snapshot) {
    for (const TensorSlice& slice : snapshot.slices)
      TRAINYARD_TRY(check_slice(slice));
    const std::lock_guard lock(mutex_);
    if (pending_ || busy_ || outcome_) {
      return Error{ErrorCode::kUnavailable, "checkpoint at step " + std::to_string(last_step_) +
                                                " has not ended, or its outcome was not fetched"};
    }
    if (snapshot.step <= last_step_) {
      return Error{ErrorCode::kAlreadyExists,
                   "checkpoint at step " + std::to_string(snapshot.step) + ": step " +
                       std::to_string(last_step_) + " has been begun already"};
    }
    last_step_ = snapshot.step;
    pending_ = std::move(snapshot);
    begun_ = SteadyClock::now();
    wake_.notify_all();
    return {};
  }

  std::optional<CheckpointOutcome> poll() {
    const std::lock_guard lock(mutex_);
    return std::exchange(outcome_, std::nullopt);
  }

  std::optional<CheckpointOutcome> wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, timeout, [this] { return !pending_ && !busy_; });
    return std::exchange(outcome_, std::nullopt);
  }

  bool busy() const {
    const std::lock_guard lock(mutex_);
    return pending_ || busy_;
  }

 private:
  void loop(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (true) {
      // What has been begun is finished even when the owner goes away: other ranks count on it.
      if (!wake_.wait(lock, stop, [this] { return pending_.has_value(); })) return;
      const Snapshot snapshot = *std::exchange(pending_, std::nullopt);
      busy_ = true;
      const auto begun = begun_;
      lock.unlock();
      CheckpointOutcome outcome = write(snapshot);
      outcome.seconds = std::chrono::duration<double>(SteadyClock::now() - begun).count();
      lock.lock();
      busy_ = false;
      outcome_ = std::move(outcome);
      ended_.notify_all();
    }
  }

  CheckpointOutcome write(const Snapshot& snapshot) {
    const CheckpointId id{started_.record.generation, snapshot.step};
    CheckpointOutcome outcome;
    outcome.step = snapshot.step;
    outcome.directory = directory_name(id);
    Result<ShardReport> report = write_own_shard(snapshot, id);
    if (report) outcome.bytes = report->shard.bytes;
    const std::string own =
        report ? encode(*report, group_.rank(), group_.size()) : error_text(report.error());
    const Status agreed = [&] {
      const trace::ScopedSpan span(
          options_.spans, trace::Track::kCheckpoint,
          {.activity = trace::Activity::kCheckpointCommit, .step = snapshot.step});
      return agree(snapshot, id, own, &outcome);
    }();
    if (!agreed) {
      outcome.status =
          agreed.error().with_context("checkpoint at step " + std::to_string(snapshot.step));
    }
    return outcome;
  }

  Result<ShardReport> write_own_shard(const Snapshot& snapshot, const CheckpointId& id) {
    const trace::ScopedSpan span(
        options_.spans, trace::Track::kCheckpoint,
        {.activity = trace::Activity::kCheckpointWrite, .step = snapshot.step});
    const std::filesystem::path directory = options_.root / directory_name(id);
    TRAINYARD_TRY(files_.make_directory(directory));
    return write_shard(files_, directory, group_.rank(), group_.size(), snapshot.slices,
                       options_.chunk_bytes);
  }

  /// Reports to rank 0, which commits or abandons; then every rank knows.
  Status agree(const Snapshot& snapshot, const CheckpointId& id, const std::string& own,
               CheckpointOutcome* outcome) {
    TRAINYARD_ASSIGN(const std::vector<std::string> reports, group_.gather(own));
    std::string verdict;
    if (group_.rank() == 0) {
      const Status committed = commit(snapshot, id, reports);
      // Should the manifest's rename have worked and only the sync failed: it goes before the
      // shards.
      if (!committed) {
        (void)files_.remove_file(options_.root / directory_name(id) / kManifestFile);
      }
      verdict = committed ? "{}" : error_text(committed.error());
    }
    TRAINYARD_ASSIGN(verdict, group_.broadcast(std::move(verdict)));
    const std::optional<Error> error = error_in(verdict);
    if (error) {
      discard(id, outcome);
      return *error;
    }
    if (group_.rank() == 0) tidy(id, outcome);
    return {};
  }

  /// Rank 0: the manifest, last of all. Its rename is the moment from which the checkpoint exists.
  Status commit(const Snapshot& snapshot, const CheckpointId& id,
                const std::vector<std::string>& reports) {
    Manifest manifest;
    std::vector<ShardReport> shards;
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      const std::string who = "rank " + std::to_string(rank);
      if (const std::optional<Error> error = error_in(reports[rank])) {
        return error->with_context(who);
      }
      auto shard = decode_shard_report(reports[rank], static_cast<int>(rank), group_.size(),
                                       options_.chunk_bytes);
      if (!shard) return shard.error().with_context(who);
      shards.push_back(*std::move(shard));
    }
    manifest.job_uid = started_.record.job_uid;
    manifest.generation = id.generation;
    manifest.parent_generation = started_.record.parent_generation;
    manifest.fork_step = started_.record.fork_step;
    manifest.step = snapshot.step;
    manifest.samples_consumed = snapshot.samples_consumed;
    manifest.previous = previous_;
    manifest.config_json = snapshot.config_json;
    manifest.scalars = snapshot.scalars;
    manifest.chunk_bytes = options_.chunk_bytes;
    TRAINYARD_TRY(merge_reports(std::move(shards), &manifest));
    TRAINYARD_ASSIGN(const std::string text, encode(manifest));
    // The directory's own name must be durable before anything in it counts.
    TRAINYARD_TRY(files_.sync_directory(options_.root));
    TRAINYARD_TRY(
        replace_file(files_, options_.root / directory_name(id) / kManifestFile, text, ".tmp"));
    TRAINYARD_ASSIGN(std::string checksum, manifest_checksum(text));
    previous_ = ManifestRef{id, std::move(checksum)};
    return {};
  }

  /// After an abandoned checkpoint: this rank's bytes go at once, since what failed may have been
  /// for want of space. The emptied directory goes with the next clean-up.
  void discard(const CheckpointId& id, CheckpointOutcome* outcome) {
    const std::string shard = shard_file_name(group_.rank(), group_.size());
    const Status removed = files_.remove_file(options_.root / directory_name(id) / shard);
    if (!removed) outcome->notes.push_back("clean-up: " + removed.error().message);
  }

  /// Rank 0, after a commit: nothing here can harm the checkpoint.
  void tidy(const CheckpointId& id, CheckpointOutcome* outcome) {
    const auto note = [&](const char* what, const Error& error) {
      outcome->notes.push_back(std::string(what) + ": " + error.message);
    };
    if (const Status moved = point_latest(files_, options_.root, id); !moved) {
      note("latest", moved.error());
      // It must not outlive what it points to; where it cannot be removed, nothing else is either.
      const Status removed = files_.remove_file(options_.root / kLatestLink);
      if (!removed) return note("latest", removed.error());
    }
    const auto removed =
        apply_retention(files_, options_.root, id.generation, id.step, options_.retention);
    if (!removed) note("clean-up", removed.error());
  }

  FileSystem& files_;
  CommitGroup& group_;
  const WriterOptions options_;
  const StartedGeneration started_;
  std::optional<ManifestRef> previous_;  // the writer's thread only

  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable ended_;
  std::optional<Snapshot> pending_;
  std::optional<CheckpointOutcome> outcome_;
  bool busy_ = false;
  int64_t last_step_;
  SteadyClock::time_point begun_;

  std::jthread thread_;  // last: it starts when everything above is there
};

CheckpointWriter::CheckpointWriter(FileSystem& files, CommitGroup& group, WriterOptions options,
                                   StartedGeneration started)
    : impl_(std::make_unique<Impl>(files, group, std::move(options), std::move(started))) {}
CheckpointWriter::~CheckpointWriter() = default;
Status CheckpointWriter::begin(Snapshot snapshot) { return impl_->begin(std::move(snapshot)); }
std::optional<CheckpointOutcome> CheckpointWriter::poll() { return impl_->poll(); }
std::optional<CheckpointOutcome> CheckpointWriter::wait(std::chrono::milliseconds timeout) {
  return impl_->wait(timeout);
}
bool CheckpointWriter::busy() const { return impl_->busy(); }

}  // namespace trainyard::checkpoint
