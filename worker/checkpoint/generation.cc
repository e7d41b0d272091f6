#include "worker/checkpoint/generation.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <random>
#include <thread>

#include "common/hash/hash.h"
#include "worker/checkpoint/adopt.h"
#include "worker/checkpoint/json_fields.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint {
namespace {

// How often rank 0 looks again when a checkpoint vanished between finding and adopting it (an older
// generation's clean-up). Each time the older generation must have committed something newer.
constexpr int kMaxRescans = 16;

constexpr char kAnew[] = "to start from scratch, begin a new job (a local run: another --run-dir)";

/// What rank 0 tells the others to do next.
struct Proposal {
  enum class Action : uint8_t { kRestore, kFresh, kFail, kRemember };
  Action action = Action::kFresh;
  /// kRestore, and kRemember where its checksum is not empty: under this generation's own name.
  ManifestRef checkpoint;
  CheckpointId memory;                      // kRemember: the state that every rank has
  LineageRecord record;                     // kRestore, kRemember, kFresh
  std::vector<std::string> notes;           // everything so far
  Error error;                              // kFail
  std::optional<CheckpointId> copied = {};  // kRemember: see StartedGeneration
};

std::string encode(const Proposal& proposal) {
  nlohmann::ordered_json json;
  json["action"] = static_cast<int>(proposal.action);
  json["step"] = proposal.checkpoint.id.step;
  json["checksum"] = proposal.checkpoint.checksum;
  json["memoryGeneration"] = proposal.memory.generation;
  json["memoryStep"] = proposal.memory.step;
  json["copiedGeneration"] = proposal.copied ? proposal.copied->generation : -1;
  json["copiedStep"] = proposal.copied ? proposal.copied->step : -1;
  json["record"] = encode(proposal.record);
  json["notes"] = proposal.notes;
  json["code"] = static_cast<int>(proposal.error.code);
  json["message"] = proposal.error.message;
  return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// Peers run the same program: anything unexpected here is a bug, never a user's mistake.
Result<Proposal> decode_proposal(const std::string& text) {
  const Json json = parse_bounded_json<Json>(text, kReportDepthMax).value_or(Json());
  const Error bug{ErrorCode::kInternal, "rank 0 sent a proposal that cannot be read: " + text};
  if (!json.is_object()) return bug;
  const auto action = integer_member(json, "action", "", 0, 3);
  const auto step = integer_member(json, "step", "", 0);
  const auto checksum = string_member(json, "checksum", "");
  const auto memory_generation = integer_member(json, "memoryGeneration", "", 0);
  const auto memory_step = integer_member(json, "memoryStep", "", 0);
  const auto copied_generation = integer_member(json, "copiedGeneration", "", -1);
  const auto copied_step = integer_member(json, "copiedStep", "", -1);
  const auto record_text = string_member(json, "record", "");
  const auto notes = array_member(json, "notes", "", 1 << 20);
  const auto code = integer_member(json, "code", "", 0, static_cast<int>(ErrorCode::kConflict));
  const auto message = string_member(json, "message", "");
  if (!action || !step || !checksum || !record_text || !notes || !code || !message) return bug;
  if (!memory_generation || !memory_step || !copied_generation || !copied_step) return bug;
  const auto record = decode_lineage(*record_text);
  if (!record) return bug;
  Proposal proposal{static_cast<Proposal::Action>(*action),
                    {{record->generation, *step}, *checksum},
                    {*memory_generation, *memory_step},
                    *record,
                    {},
                    {static_cast<ErrorCode>(*code), *message}};
  if (*copied_step >= 0) proposal.copied = CheckpointId{*copied_generation, *copied_step};
  for (const Json& note : **notes) {
    if (!note.is_string()) return bug;
    proposal.notes.push_back(note.get<std::string>());
  }
  return proposal;
}

/// Whether an older checkpoint may help: damage and disk faults, not a wrong configuration or a
/// bug.
bool is_damage(ErrorCode code) {
  return code == ErrorCode::kInvalidData || code == ErrorCode::kNotFound || code == ErrorCode::kIo;
}

/// How one rank's restoring ended, as text for rank 0: empty when it went well.
std::string encode(const Status& status) {
  if (status) return "";
  return nlohmann::ordered_json{{"code", static_cast<int>(status.error().code)},
                                {"message", status.error().message}}
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// Before a checkpoint that could not be read is tried again.
constexpr std::array kPauses = {std::chrono::milliseconds(200), std::chrono::milliseconds(1000)};

/// Why the ranks could not restore; fatal when an older checkpoint would not help.
struct Verdict {
  bool fatal = true;
  Error error;
};

/// The first failure in rank order, a fatal one before damage.
Verdict judge(const std::vector<std::string>& reports) {
  std::optional<Verdict> verdict;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].empty()) continue;
    const Json json = parse_bounded_json<Json>(reports[rank], kReportDepthMax).value_or(Json());
    const auto code = integer_member(json, "code", "", 0, static_cast<int>(ErrorCode::kConflict));
    const auto message = string_member(json, "message", "");
    const Error error{code ? static_cast<ErrorCode>(*code) : ErrorCode::kInternal,
                      "rank " + std::to_string(rank) + ": " + (message ? *message : "?")};
    const bool fatal = !is_damage(error.code);
    if (!verdict || (fatal && !verdict->fatal)) verdict = Verdict{fatal, error};
  }
  return verdict.value_or(Verdict{true, {ErrorCode::kInternal, "no rank says why it failed"}});
}

/// 16 hexadecimal digits, others for each copy of a run that begins the generation.
std::string draw_branch_id() {
  std::random_device device;
  std::array<uint8_t, 8> drawn{};
  for (uint8_t& byte : drawn)
    byte = static_cast<uint8_t>(device());
  return to_hex(drawn);
}

/// Rank 0's side: which state to try next.
class Proposer {
 public:
  Proposer(FileSystem& files, const GenerationPlan& plan) : files_(files), plan_(plan) {
    record_ = {plan.generation, plan.job_uid, std::nullopt, kFromScratch, draw_branch_id()};
  }

  /// What to try first. `offers`: what each rank has in memory, see encode(RankOffers).
  Proposal first(const std::vector<std::string>& offers) {
    Status prepared = prepare();
    for (const std::string& text : offers) {
      auto of_rank = decode_offers(text);
      if (!of_rank) return fail(of_rank.error());
      offers_.push_back(*std::move(of_rank));
    }
    return prepared ? next() : fail(prepared.error());
  }

  /// What to try after some rank could not restore from `proposal`. `reports`: see encode(Status).
  Proposal after_failure(const Proposal& proposal, const std::vector<std::string>& reports) {
    const Verdict verdict = judge(reports);
    if (proposal.action == Proposal::Action::kRemember) {
      notes_.push_back("state in memory of step " + std::to_string(proposal.memory.step) + ": " +
                       verdict.error.message);
      return verdict.fatal ? fail(verdict.error) : next();
    }
    notes_.push_back(directory_name(tried_.back()) + ": " + verdict.error.message);
    // A disk's bad moment is no damage, and what an older checkpoint costs is lost for good.
    if (verdict.error.code == ErrorCode::kIo && again_ < kPauses.size()) {
      std::this_thread::sleep_for(kPauses[again_++]);
      Proposal again = proposal;
      again.notes = notes_;
      return again;
    }
    again_ = 0;
    io_failed_ |= verdict.error.code == ErrorCode::kIo;
    const Status removed = remove_checkpoint(files_, plan_.root, proposal.checkpoint.id);
    if (verdict.fatal) return fail(verdict.error);
    return removed ? next() : fail(removed.error());
  }

  /// Whether the checkpoint of the newest proposal has been copied.
  bool copied() const { return copied_; }

  /// Takes over the newest checkpoint that a generation which goes on from memory can fall back on,
  /// so that no clean-up of its parent's takes it away. Where there is none, memory has to do.
  void adopt_fallback(Proposal& proposal) {
    const auto candidates = find_candidates();
    if (!candidates) return proposal.notes.push_back(candidates.error().message);
    for (const CheckpointId& id : *candidates) {
      if (id.step > proposal.record.fork_step) continue;
      const auto source = open_source(files_, plan_.root, id, records_);
      const auto adopted = source ? adopt(files_, plan_.root, **source, proposal.record)
                                  : Result<Adopted>(source.error());
      if (adopted) {
        copied_ = adopted->copied;
        proposal.checkpoint = adopted->checkpoint;
        return;
      }
      proposal.notes.push_back(directory_name(id) + ": " + adopted.error().message);
    }
  }

 private:
  /// Looks at the directory. Errors: see start_generation.
  Status prepare() {
    TRAINYARD_ASSIGN(StoredLineage stored, load_lineage(files_, plan_.root));
    notes_ = std::move(stored.notes);
    unreadable_ = stored.recorded.size() - stored.records.size();
    TRAINYARD_TRY(refuse_other_jobs(stored.records));
    if (stored.recorded.contains(plan_.generation)) {
      return Error{ErrorCode::kConflict,
                   plan_.root.string() + ": generation " + std::to_string(plan_.generation) +
                       " has already started; a new generation is needed to continue"};
    }
    TRAINYARD_TRY(refuse_lost_lineage(stored));
    if (plan_.parent_generation) {
      record_.parent_generation =
          newest_recorded(stored.records, std::min(*plan_.parent_generation, plan_.generation - 1));
    }
    return {};
  }

  Status refuse_other_jobs(const LineageRecords& records) const {
    for (const auto& [generation, record] : records) {
      if (record.job_uid == plan_.job_uid) continue;
      return Error{ErrorCode::kInvalidConfig,
                   "checkpoint directory " + plan_.root.string() + ": holds checkpoints of job " +
                       record.job_uid + ", this is job " + plan_.job_uid +
                       "; give checkpointPolicy.path another value or move the old ones away"};
    }
    return {};
  }

  /// Checkpoints are committed only by generations that have recorded themselves. Without any
  /// record nobody's history is known, and starting from scratch would end with the old ones
  /// removed.
  Status refuse_lost_lineage(const StoredLineage& stored) {
    if (!stored.recorded.empty()) return {};
    TRAINYARD_ASSIGN(const std::vector<FoundDirectory> found, find_checkpoints(files_, plan_.root));
    for (const FoundDirectory& directory : found) {
      if (!directory.committed) continue;
      return Error{ErrorCode::kInvalidData,
                   plan_.root.string() + ": found " + directory_name(directory.id) +
                       " but no record in lineage/; restore that folder from a copy; to start from "
                       "scratch, begin a new job with another checkpointPolicy.path"};
    }
    return {};
  }

  /// The newest state in memory, or the newest candidate that can be adopted.
  Proposal next() {
    for (int scan = 0; scan < kMaxRescans; ++scan) {
      Result<std::vector<CheckpointId>> candidates = find_candidates();
      if (!candidates) return fail(candidates.error());
      if (const auto id = newest_in_memory(*candidates)) {
        const std::optional<CheckpointId> copied = newest_untried(with_copies_);
        tried_in_memory_.push_back(*id);
        return {Proposal::Action::kRemember, {}, *id, record_with(id->step), notes_, {}, copied};
      }
      if (candidates->empty() && tried_.empty()) return from_scratch();
      if (std::optional<Proposal> proposal = adopt_newest(*candidates)) return *proposal;
    }
    return fail({ErrorCode::kUnavailable,
                 plan_.root.string() + ": checkpoints vanish as fast as they are found"});
  }

  /// That every rank has, and that is not older than the newest checkpoint.
  std::optional<CheckpointId> newest_in_memory(const std::vector<CheckpointId>& candidates) const {
    const std::optional<CheckpointId> id = newest_untried(in_memory_);
    if (id && !candidates.empty() && candidates.front().step > id->step) return std::nullopt;
    return id;
  }

  /// Of states in memory, newest first.
  std::optional<CheckpointId> newest_untried(const std::vector<CheckpointId>& states) const {
    for (const CheckpointId& id : states) {
      const bool tried =
          std::find(tried_in_memory_.begin(), tried_in_memory_.end(), id) != tried_in_memory_.end();
      if (!tried) return id;
    }
    return std::nullopt;
  }

  /// See open_source. A disk's bad moment is no damage.
  Result<std::unique_ptr<CheckpointReader>> open_again_after_pauses(const CheckpointId& id) {
    for (const std::chrono::milliseconds pause : kPauses) {
      auto source = open_source(files_, plan_.root, id, records_);
      if (source || source.error().code != ErrorCode::kIo) return source;
      notes_.push_back(directory_name(id) + ": " + source.error().message);
      std::this_thread::sleep_for(pause);
    }
    return open_source(files_, plan_.root, id, records_);
  }

  /// Nullopt when a candidate vanished meanwhile, so that it is worth looking again.
  std::optional<Proposal> adopt_newest(const std::vector<CheckpointId>& candidates) {
    for (const CheckpointId& id : candidates) {
      const LineageRecord record = record_with(id.step);
      const auto source = open_again_after_pauses(id);
      const Result<Adopted> adopted =
          source ? adopt(files_, plan_.root, **source, record) : Result<Adopted>(source.error());
      if (!adopted && adopted.error().code == ErrorCode::kNotFound) return std::nullopt;
      const bool unread = !source && source.error().code == ErrorCode::kIo;
      const bool foreign = !source && source.error().code == ErrorCode::kConflict;
      if (!adopted && adopted.error().code != ErrorCode::kInvalidData && !unread && !foreign) {
        return fail(adopted.error());
      }
      io_failed_ |= unread;
      tried_.push_back(id);
      if (adopted) {
        copied_ = adopted->copied;
        return Proposal{Proposal::Action::kRestore, adopted->checkpoint, {}, record, notes_, {}};
      }
      notes_.push_back(directory_name(id) + ": " + adopted.error().message);
    }
    const std::string none =
        plan_.root.string() + ": none of " + std::to_string(tried_.size()) + " checkpoints ";
    if (io_failed_) {
      return fail({ErrorCode::kIo, none + "can be read; " + notes_.back() +
                                       "; look at the storage, another attempt may read them"});
    }
    return fail({ErrorCode::kInvalidData,
                 none + "is good; " + notes_.back() + "; repair them from a copy; " + kAnew});
  }

  /// A volume that is not mounted looks like a run that has not begun.
  Proposal from_scratch() const {
    if (unreadable_ > 0 && record_.parent_generation != plan_.parent_generation) {
      return fail({ErrorCode::kInvalidData,
                   plan_.root.string() + ": the history cannot be read: " + notes_.back()});
    }
    if (plan_.committed_step) {
      return fail({ErrorCode::kInvalidData,
                   plan_.root.string() + ": found no checkpoint, though one at step " +
                       std::to_string(*plan_.committed_step) +
                       " was committed; mount the volume that holds it or restore it from a "
                       "copy; " +
                       kAnew});
    }
    const Status made = make_directories(files_, plan_.root);
    if (!made) return fail(made.error());
    return {Proposal::Action::kFresh, {}, {}, record_, notes_, {}};
  }

  Result<std::vector<CheckpointId>> find_candidates() {
    if (!record_.parent_generation) return std::vector<CheckpointId>();
    // Read again each time: the parent may have been late with its own record or a commit.
    TRAINYARD_ASSIGN(StoredLineage stored, load_lineage(files_, plan_.root));
    TRAINYARD_TRY(refuse_other_jobs(stored.records));
    records_ = std::move(stored.records);
    TRAINYARD_ASSIGN(const Lineage lineage, Lineage::of(*record_.parent_generation, records_));
    in_memory_ = common_states(offers_, lineage, records_);
    with_copies_ = states_with_copies(offers_, lineage, records_);
    TRAINYARD_ASSIGN(const std::vector<FoundDirectory> found, find_checkpoints(files_, plan_.root));
    std::vector<CheckpointId> ids = newest_first(found, lineage);
    std::erase_if(ids, [&](const CheckpointId& id) {
      return std::find(tried_.begin(), tried_.end(), id) != tried_.end();
    });
    return ids;
  }

  LineageRecord record_with(int64_t fork_step) const {
    LineageRecord record = record_;
    record.fork_step = fork_step;
    return record;
  }

  Proposal fail(Error error) const {
    return {Proposal::Action::kFail, {}, {}, record_, notes_, std::move(error)};
  }

  FileSystem& files_;
  const GenerationPlan& plan_;
  LineageRecord record_;
  LineageRecords records_;  // as read for the newest look at the candidates
  size_t unreadable_ = 0;   // lineage files that say nothing any more
  std::vector<CheckpointId> tried_;
  std::vector<RankOffers> offers_;         // by rank
  std::vector<CheckpointId> in_memory_;    // that all ranks have, newest first
  std::vector<CheckpointId> with_copies_;  // those that all keepers have as well
  std::vector<CheckpointId> tried_in_memory_;
  bool copied_ = false;     // the newest proposal
  size_t again_ = 0;        // attempts at the newest proposal after the first
  bool io_failed_ = false;  // some candidate was given up without being known to be damaged
  std::vector<std::string> notes_;
};

Status restore_own(FileSystem& files, const GenerationPlan& plan, const Proposal& proposal,
                   const std::function<Status(CheckpointReader&)>& restore) {
  const std::string name = directory_name(proposal.checkpoint.id);
  TRAINYARD_ASSIGN(const std::unique_ptr<CheckpointReader> reader,
                   CheckpointReader::open(files, plan.root / name, Verify::kManifest));
  if (reader->checksum() != proposal.checkpoint.checksum) {
    return Error{ErrorCode::kInvalidData,
                 name + ": this rank sees another manifest than rank 0; is " + plan.root.string() +
                     " one directory shared by all ranks?"};
  }
  return restore(*reader);
}

Result<Proposal> share(CommitGroup& group, const Proposal& own) {
  TRAINYARD_ASSIGN(const std::string text, group.broadcast(group.rank() == 0 ? encode(own) : ""));
  return decode_proposal(text);
}

/// What is on the disk twice since it had to be copied goes under its older name, or restarts
/// without a new checkpoint in between would fill the disk. Every step stays. A failure costs room
/// only.
void remove_duplicates(FileSystem& files, const std::filesystem::path& root,
                       const LineageRecord& own, std::vector<std::string>& notes) {
  const RetentionPolicy every_step{.keep_last = std::numeric_limits<int64_t>::max()};
  const auto cleaned = apply_retention(files, root, own.generation, own.fork_step, every_step);
  if (!cleaned) return notes.push_back("clean-up: " + cleaned.error().message);
  for (const std::string& line : cleaned->left)
    notes.push_back("clean-up: " + line);
}

/// `latest` names what is gone on from: its old target may be what was just turned down. Somebody
/// who set it back by hand learns that it decides nothing.
void move_latest(FileSystem& files, const std::filesystem::path& root, const CheckpointId& own,
                 std::vector<std::string>& notes) {
  const std::optional<CheckpointId> named = read_latest(files, root);
  if (named && named->step < own.step) {
    notes.push_back(std::string(kLatestLink) + ": named " + directory_name(*named) +
                    ", an older checkpoint; this has no effect, and the run resumes from " +
                    directory_name(own) +
                    " (to resume from an older one, move the newer ones away)");
  }
  if (std::string note = point_latest(files, root, own); !note.empty()) {
    notes.push_back(std::move(note));
  }
}

/// Restored everywhere: the record is the last thing, a generation without one never counts.
Result<StartedGeneration> conclude(FileSystem& files, const GenerationPlan& plan,
                                   CommitGroup& group, const Proposal& proposal,
                                   Proposer& proposer) {
  Proposal own = proposal;
  if (group.rank() == 0) {
    if (own.action == Proposal::Action::kRemember) proposer.adopt_fallback(own);
    const Status recorded = write_lineage(files, plan.root, proposal.record);
    if (!recorded) {
      own.action = Proposal::Action::kFail;
      own.error = recorded.error();
    } else if (!own.checkpoint.checksum.empty()) {
      move_latest(files, plan.root, own.checkpoint.id, own.notes);
      if (proposer.copied()) remove_duplicates(files, plan.root, proposal.record, own.notes);
    }
  }
  TRAINYARD_ASSIGN(const Proposal agreed, share(group, own));
  if (agreed.action == Proposal::Action::kFail) return agreed.error;
  StartedGeneration started{.record = agreed.record, .notes = agreed.notes};
  if (!agreed.checkpoint.checksum.empty()) started.resumed_from = agreed.checkpoint;
  if (agreed.action == Proposal::Action::kRemember) {
    started.memory_step = agreed.memory.step;
    started.copied = agreed.copied;
  }
  return started;
}

}  // namespace

Result<StartedGeneration> start_generation(FileSystem& files, const GenerationPlan& plan,
                                           CommitGroup& group,
                                           const std::function<Status(CheckpointReader&)>& restore,
                                           const MemoryStates& memory) {
  const bool lead = group.rank() == 0;
  Proposer proposer(files, plan);
  std::vector<std::string> offers;
  if (plan.parent_generation) {
    TRAINYARD_ASSIGN(offers, group.gather(encode(memory.offers)));
  }
  Proposal own = lead ? proposer.first(offers) : Proposal{};
  while (true) {  // ends: every failed attempt uses up a candidate
    TRAINYARD_ASSIGN(const Proposal proposal, share(group, own));
    if (proposal.action == Proposal::Action::kFail) return proposal.error;
    Status restored;
    if (proposal.action == Proposal::Action::kRestore) {
      restored = restore_own(files, plan, proposal, restore);
    } else if (proposal.action == Proposal::Action::kRemember) {
      restored = memory.restore(proposal.memory);
    }
    TRAINYARD_ASSIGN(const bool failed, group.any(!restored));
    if (!failed) return conclude(files, plan, group, proposal, proposer);
    TRAINYARD_ASSIGN(const std::vector<std::string> reports, group.gather(encode(restored)));
    if (lead) own = proposer.after_failure(proposal, reports);
  }
}

}  // namespace trainyard::checkpoint
