#include "worker/checkpoint/save.h"

#include <ctime>
#include <utility>

#include "worker/checkpoint/json_fields.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint {
namespace {

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

std::string error_text(const Error& error) {
  return nlohmann::ordered_json{{"error", static_cast<int>(error.code)}, {"message", error.message}}
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// The error that a rank's report or rank 0's verdict carries; nullopt when it carries none.
std::optional<Error> error_in(const std::string& text) {
  const Json json = parse_bounded_json<Json>(text, kReportDepthMax).value_or(Json());
  if (!json.is_object()) return Error{ErrorCode::kInternal, "a report that cannot be read"};
  if (!json.contains("error")) return std::nullopt;
  const auto code = integer_member(json, "error", "", 0, static_cast<int>(ErrorCode::kConflict));
  const auto message = string_member(json, "message", "");
  return Error{code ? static_cast<ErrorCode>(*code) : ErrorCode::kInternal,
               message ? *message : "no message"};
}

/// Every rank has written its shard; this one, which is about to say that all are there, looks for
/// them. Ranks on nodes whose directories only have the same name would find out when they resume.
Status find_shards(FileSystem& files, const std::filesystem::path& directory,
                   const std::vector<int64_t>& sizes) {
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    const std::string name =
        shard_file_name(static_cast<int64_t>(rank), static_cast<int64_t>(sizes.size()));
    const auto shard = files.open(directory / name);
    if (!shard && shard.error().code != ErrorCode::kNotFound) return shard.error();
    if (shard && (*shard)->size() == sizes[rank]) continue;
    return Error{ErrorCode::kNotFound,
                 "rank " + std::to_string(rank) + " has written " + name + ", rank 0 finds " +
                     (shard ? std::to_string((*shard)->size()) + " bytes of it" : "no such file") +
                     " in " + directory.string() + ": is that one directory shared by all ranks?"};
  }
  return {};
}

}  // namespace

// The results of file jobs: written by the disk thread, read here after the job's end.

struct Save::Written {
  Result<ShardReport> report = Error{ErrorCode::kInternal, "not written"};
  double seconds = 0;
};

struct Save::Committed {
  Status status = Error{ErrorCode::kInternal, "not committed"};
  bool withdrawn = true;  // when it failed: the manifest is certainly not there
};

/// How rank 0 decided, on every rank.
struct Save::Verdict {
  std::optional<Error> error;
  /// The shards go. Not when rank 0 does not know whether the manifest will appear after all: then
  /// either a whole checkpoint is there or none, and a later clean-up takes the shards.
  bool discard = true;

  std::string encoded() const {
    if (!error) return "{}";
    return discard ? error_text(*error) : error_text(*error) + "\nkeep";
  }
  static Verdict decoded(std::string text) {
    const size_t line = text.find('\n');
    const bool keep = line != std::string::npos;
    if (keep) text.resize(line);
    return {error_in(text), !keep};
  }
};

CheckpointOutcome Save::run(Result<Snapshot> snapshot) {
  CheckpointOutcome outcome;
  outcome.step = id_.step;
  outcome.directory = directory_name(id_);
  limit_ = SteadyClock::now() + context_.options.save_limit;
  const Status status = agree(std::move(snapshot), outcome);
  if (!status) {
    context_.disk.abandon();
    outcome.status = status.error().with_context("checkpoint at step " + std::to_string(id_.step));
  }
  return outcome;
}

Status Save::agree(Result<Snapshot> snapshot, CheckpointOutcome& outcome) {
  Snapshot described;  // all but the tensors
  if (snapshot) {
    described.samples_consumed = snapshot->samples_consumed;
    described.version = snapshot->version;
    described.config_json = snapshot->config_json;
    described.scalars = snapshot->scalars;
    best_step_ = best_step_of(described.scalars);
  }
  TRAINYARD_ASSIGN(std::string own, write_own_shard(std::move(snapshot), outcome));
  const trace::ScopedSpan span(context_.options.spans, trace::Track::kCheckpoint,
                               {.activity = trace::Activity::kCheckpointCommit, .step = id_.step});
  TRAINYARD_ASSIGN(const std::vector<std::string> reports, context_.group.gather(std::move(own)));
  TRAINYARD_ASSIGN(Verdict verdict, commit(described, reports));
  TRAINYARD_ASSIGN(const std::string text, context_.group.broadcast(verdict.encoded()));
  outcome.agreed = true;
  verdict = Verdict::decoded(text);
  clean_up(verdict);
  if (verdict.error) return *verdict.error;
  return {};
}

/// Waits until no rank has a job in progress that moves. `own`: whether this rank waits for one.
/// True when it has ended or there was none; false when it hangs and has been abandoned.
Result<bool> Save::await_all(bool own) {
  bool hangs = false;
  while (true) {
    if (own && context_.disk.wait(context_.options.round)) own = false;
    if (own && (context_.disk.hung() || SteadyClock::now() >= limit_)) {
      context_.disk.abandon();
      hangs = true;
      own = false;
    }
    TRAINYARD_ASSIGN(const bool anybody, context_.group.any(own));
    if (!anybody) return !hangs;
  }
}

Error Save::hanging(const char* what) const {
  // Not kDeadline: that would mean that the group is gone.
  return {ErrorCode::kIo, std::string(what) + ": the disk hangs (" + context_.disk.activity() +
                              "); look at the storage behind " + context_.options.root.string()};
}

/// This rank's report for rank 0. Errors: those of the group only.
Result<std::string> Save::write_own_shard(Result<Snapshot> snapshot, CheckpointOutcome& outcome) {
  const trace::ScopedSpan span(context_.options.spans, trace::Track::kCheckpoint,
                               {.activity = trace::Activity::kCheckpointWrite, .step = id_.step});
  // The clean-up after the checkpoint before may still run.
  TRAINYARD_ASSIGN(const bool ready, await_all(!context_.disk.idle()));
  auto written = std::make_shared<Written>();
  const bool begun = ready && snapshot;
  if (begun) {
    context_.disk.start([written, snapshot = *std::move(snapshot),
                         directory = context_.options.root / directory_name(id_),
                         rank = context_.group.rank(), size = context_.group.size(),
                         chunk_bytes = context_.options.chunk_bytes](FileSystem& files) {
      const auto begin = SteadyClock::now();
      Status made = files.make_directory(directory);
      // Of a write of this step that was abandoned.
      if (made) made = files.remove_file(directory / shard_file_name(rank, size));
      written->report =
          made ? write_shard(files, directory, rank, size, snapshot.slices, chunk_bytes)
               : Result<ShardReport>(made.error());
      written->seconds = seconds_since(begin);
    });
  }
  TRAINYARD_ASSIGN(const bool ended, await_all(begun));
  if (!snapshot) return error_text(snapshot.error());
  if (!ready) return error_text(hanging("clean-up of the previous checkpoint"));
  if (!ended) return error_text(hanging("shard"));
  if (!written->report) return error_text(written->report.error());
  outcome.bytes = written->report->shard.bytes;
  outcome.write_s = written->seconds;
  outcome.write_cpu_s = written->report->cpu_s;
  return encode(*written->report, context_.group.rank(), context_.group.size());
}

/// The manifest, last of all, by rank 0. Its rename is the moment from which the checkpoint exists.
Result<Save::Verdict> Save::commit(const Snapshot& described,
                                   const std::vector<std::string>& reports) {
  Result<std::string> text = std::string();
  std::vector<int64_t> sizes;
  auto committed = std::make_shared<Committed>();
  bool begun = false;
  if (context_.group.rank() == 0) {
    const Result<Manifest> manifest = make_manifest(described, reports);
    text = manifest ? encode(*manifest) : Result<std::string>(manifest.error());
    if (text && static_cast<int64_t>(text->size()) > kMaxManifestBytes) {
      text = Error{ErrorCode::kUnavailable, "manifest: " + std::to_string(text->size()) +
                                                " bytes, at most " +
                                                std::to_string(kMaxManifestBytes) + " can be read"};
    }
    begun = text.has_value();
    for (size_t i = 0; begun && i < manifest->shards.size(); ++i)
      sizes.push_back(manifest->shards[i].bytes);
  }
  if (begun) {
    context_.disk.start(
        [committed, text = *text, sizes, root = context_.options.root,
         directory = context_.options.root / directory_name(id_)](FileSystem& files) {
          committed->status = find_shards(files, directory, sizes);
          // The directory's own name must be durable before anything in it counts.
          if (committed->status) committed->status = files.sync_directory(root);
          if (!committed->status) return;
          committed->status = replace_file(files, directory / kManifestFile, text, ".tmp");
          if (committed->status) return;
          // Should the rename have worked and only the sync failed: it goes before the shards.
          committed->withdrawn = files.remove_file(directory / kManifestFile).has_value();
        });
  }
  TRAINYARD_ASSIGN(const bool ended, await_all(begun));
  if (!text) return Verdict{text.error()};
  if (!begun) return Verdict{};
  if (!ended) return Verdict{hanging("manifest"), false};
  if (!committed->status) return Verdict{committed->status.error(), committed->withdrawn};
  TRAINYARD_ASSIGN(std::string checksum, manifest_checksum(*text));
  previous_ = ManifestRef{id_, std::move(checksum)};
  return Verdict{};
}

Result<Manifest> Save::make_manifest(const Snapshot& described,
                                     const std::vector<std::string>& reports) const {
  Manifest manifest;
  std::vector<ShardReport> shards;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    if (const std::optional<Error> error = error_in(reports[rank])) {
      return error->with_context(who);
    }
    auto shard = decode_shard_report(reports[rank], static_cast<int>(rank), context_.group.size(),
                                     context_.options.chunk_bytes);
    if (!shard) return shard.error().with_context(who);
    shards.push_back(*std::move(shard));
  }
  const LineageRecord& record = context_.started.record;
  manifest.job_uid = record.job_uid;
  manifest.generation = id_.generation;
  manifest.parent_generation = record.parent_generation;
  manifest.fork_step = record.fork_step;
  manifest.branch_id = record.branch_id;
  manifest.step = id_.step;
  manifest.samples_consumed = described.samples_consumed;
  manifest.previous = previous_;
  manifest.version = described.version;
  manifest.config_json = described.config_json;
  manifest.scalars = described.scalars;
  manifest.chunk_bytes = context_.options.chunk_bytes;
  TRAINYARD_TRY(merge_reports(std::move(shards), &manifest));
  return manifest;
}

/// Nothing here can harm a checkpoint, and nobody else waits for it: what takes longer than a round
/// goes on beside training.
void Save::clean_up(const Verdict& verdict) {
  const std::shared_ptr<Notes> notes = context_.options.notes;
  const bool discard = verdict.error && verdict.discard;
  const bool tidy = !verdict.error && context_.group.rank() == 0;
  if (!context_.disk.idle() || (!discard && !tidy)) return;
  if (discard) {
    // This rank's bytes go at once, since what failed may have been for want of space, and with
    // those of the last rank the directory. What a rank that hangs has left goes with the next
    // clean-up.
    const auto directory = context_.options.root / directory_name(id_);
    const auto shard = directory / shard_file_name(context_.group.rank(), context_.group.size());
    context_.disk.start([notes, directory, shard](FileSystem& files) {
      Status removed = files.remove_file(shard);
      if (removed) removed = files.remove_directory(directory);
      const bool others_left = !removed && removed.error().code == ErrorCode::kAlreadyExists;
      if (!removed && !others_left) notes->add("clean-up: " + removed.error().message);
    });
  } else {
    RetentionPolicy policy = context_.options.retention;
    policy.best_step = best_step_;
    if (context_.options.proven_step) policy.proven_step = context_.options.proven_step();
    context_.disk.start([notes, id = id_, root = context_.options.root, policy](FileSystem& files) {
      if (std::string note = point_latest(files, root, id); !note.empty()) {
        notes->add(std::move(note));
      }
      const auto cleaned = apply_retention(files, root, id.generation, id.step, policy);
      if (!cleaned) return notes->add("clean-up: " + cleaned.error().message);
      for (const std::string& line : cleaned->left)
        notes->add("clean-up: " + line);
    });
  }
  context_.disk.wait(context_.options.round);
}

}  // namespace trainyard::checkpoint
