#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/api/training_job.h"
#include "common/worker_contract.h"
#include "control/coordinator/job_run.h"
#include "control/local/job_store.h"

namespace trainyard::cli {

/// What a run is, said once at its start.
struct RunHeader {
  std::string job_name;
  std::string run_dir;
  int64_t nodes = 1;
  int64_t ranks = 1;
  int64_t threads_per_rank = 0;  ///< 0: not ours to say (a foreign program)
  bool resumed = false;          ///< the run directory holds an unfinished run of this job
  int64_t generation = 0;        ///< of that run
  int64_t step = 0;              ///< that run's newest checkpoint
  /// What that run was: unfinished, failed or complete.
  control::local::TakenUp taken_up = control::local::TakenUp::kNo;
  bool manifest_changed = false;  ///< since that run; it goes on with the new one
  /// Of the pod template: what a cluster would apply and this machine does not.
  std::vector<std::string> unapplied_fields;
};

/// A part of some time.
struct NamedSeconds {
  std::string name;
  double seconds = 0;
};

/// A run at one moment.
struct Snapshot : contract::KnownFigures {
  std::string activity;  ///< "starting", "training", "restarting" ...
  int64_t generation = 0;
  std::string layout;  ///< how the engine's ranks divide the work; empty: not known
  int64_t pipeline_stages = 1;
  int64_t step = 0;
  int64_t total_steps = 0;  ///< 0: not known yet
  std::optional<double> eta_s;
  int64_t checkpoint_step = -1;     ///< -1: none yet
  int64_t checkpoint_failures = 0;  ///< abandoned since the ranks were started
  int64_t restarts = 0;
  double wall_s = 0;  ///< of the job so far
  int64_t lost_steps = 0;
  std::optional<double> goodput;  ///< productive by wall time
  std::optional<int64_t> slowest_rank;
  std::vector<control::RankReading> ranks;  ///< by rank
  /// What rank 0's training thread has spent since its process began; empty: not known.
  std::vector<NamedSeconds> stage_seconds;
};

/// Something that happened.
struct Notice {
  enum class Kind { kEvent, kWarning, kRankExit, kMessage };
  Kind kind = Kind::kMessage;
  std::string reason;   ///< a word: "Restarting", "RankExited" ...
  std::string message;  ///< for people
  std::vector<std::string> details;
  int64_t step = -1;  ///< newest that a rank had told of; -1: not known
};

/// What the trace says of one rank.
struct TracedRank {
  int rank = 0;
  int64_t steps = 0;
  double communication_s = 0;
  double hidden = 0;  ///< share of the communication that ran while the rank computed
};

/// What a run came to.
struct Summary {
  enum class Outcome { kComplete, kFailed, kStopped, kKilled };
  Outcome outcome = Outcome::kComplete;
  int exit_code = 0;
  std::string job_name;
  std::string reason;           ///< of a failure
  bool directory_gone = false;  ///< nothing is where it was: the same command would begin anew
  std::string layout;           ///< of the newest generation; empty: not known
  int64_t step = 0;
  int64_t total_steps = 0;
  /// Of a run that is not complete: since its ranks were started.
  int64_t skipped_steps = 0;
  std::optional<double> final_loss;
  std::optional<double> validation_loss;
  std::optional<double> validation_bits_per_byte;
  std::optional<double> tokens_per_second;
  std::optional<double> model_flops_utilization;
  double wall_s = 0;  ///< of the job, over all its runs; stops between them left out
  /// Where the job's time went, the productive part first; empty: not known.
  std::vector<NamedSeconds> time_shares;
  std::optional<int64_t> checkpoint_step;  ///< the newest committed; nullopt: none
  int64_t restarts = 0;
  int64_t lost_steps = 0;
  std::optional<api::GoodputStatus> goodput;  ///< where the time went
  std::optional<contract::PeakMemory> peak_memory;
  std::optional<contract::BestModel> best;  ///< of a complete run with early stopping
  bool stopped_early = false;
  std::string checkpoint_dir;
  std::string export_dir;   ///< of a complete run that exports its model; empty: none
  std::string state_hash;   ///< empty: not reported
  std::string report_file;  ///< empty: not written
  std::string trace_file;   ///< empty: not traced
  std::vector<TracedRank> traced_ranks;
  std::vector<control::RankReading> ranks;  ///< those that have told, by rank, as they did last
  int64_t world_size = 0;                   ///< all that there are
  int64_t pipeline_stages = 1;
  std::string planned_cut;               ///< how a pipeline is cut; empty: there is none
  std::optional<double> planned_bubble;  ///< of a pipeline
  std::vector<std::string> warnings;     ///< of a complete run, what hindered its clean-ups
  std::vector<std::string> next_commands;

  /// The directory of the best model's checkpoint; empty: there is none.
  std::string best_checkpoint() const {
    const bool known = best && !best->checkpoint.empty() && !checkpoint_dir.empty();
    return known ? checkpoint_dir + "/" + best->checkpoint : "";
  }

  /// Whether it failed because steps were skipped: the same command would fail again, and the
  /// newest checkpoint may be of the model that has diverged.
  bool diverged() const {
    return outcome == Outcome::kFailed && exit_code == contract::kExitBadData && skipped_steps > 0;
  }
};

/// Shows a run. One thread.
class RunView {
 public:
  virtual ~RunView() = default;
  virtual void begin(const RunHeader& header) = 0;
  /// Called several times a second; a view shows what it has room for.
  virtual void update(const Snapshot& snapshot) = 0;
  virtual void notice(const Notice& notice) = 0;
  virtual void end(const Summary& summary) = 0;
};

/// A block of lines rewritten in place; `out` must be a terminal.
std::unique_ptr<RunView> make_terminal_view(std::ostream& out);
/// A line every few seconds: for logs.
std::unique_ptr<RunView> make_plain_view(std::ostream& out);
/// One JSON object a line: type `start`, `progress`, `event` or `summary`.
std::unique_ptr<RunView> make_json_view(std::ostream& out);

}  // namespace trainyard::cli
