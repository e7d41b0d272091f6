#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>

#include "cli/commands.h"
#include "cli/foreseen.h"
#include "cli/registry.h"
#include "cli/report/report.h"
#include "cli/run/format.h"
#include "cli/run/limits.h"
#include "cli/run/local_run.h"
#include "cli/run/run_view.h"
#include "cli/run/signals.h"
#include "cli/run/status_endpoint.h"
#include "cli/top/live_view.h"
#include "common/api/decode.h"
#include "common/api/job_size.h"
#include "common/api/validate.h"
#include "common/io/control_group.h"
#include "common/io/gpu_files.h"
#include "common/io/input.h"
#include "common/worker_contract.h"
#include "control/local/job_store.h"
#include "control/policies/elastic.h"
#include "worker/trace/trace_file.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"(Examples:
  trainyard run job.yaml
  trainyard run job.yaml --nodes 2 --procs 2
  trainyard run job.yaml --steps 4000     trains a finished run further, to step 4000
  trainyard run job.yaml --run-dir /data/run7 -o json > run7.jsonl
  trainyard run job.yaml --trace=50       traces the last 50 steps, for Perfetto

Runs a TrainingJob on this machine with one agent per node and one worker per rank. The run
directory (runs/NAME) contains status, logs and checkpoints. To resume a stopped run, repeat the
command with the same run directory. To train a finished run further, repeat it with more --steps.
Failed ranks restart from the newest checkpoint. Ctrl-C writes a checkpoint and stops the run; a
second Ctrl-C stops it at once. The run continues if the program that reads its standard output
exits (| head -1).

Your own program (spec.template) starts in its container's workingDir. It gets the environment of
this command and the container's env; $(NAME) expands as in a cluster. If a variable has a
valueFrom, set the variable in the environment of this command. Pass --env-from NAME=FILE for each
ConfigMap or Secret in envFrom. Volumes are not mounted: their mount paths must exist on this
machine. When the run starts, it lists the other fields that it ignores.

Exit codes: 0 complete; 64 wrong usage, manifest or run directory, a full disk there, or another run
uses the directory; 65 bad data or checkpoint, or the run directory was lost; 70 a bug in a rank; 74
complete, but standard output could not be written; 75 stopped with a checkpoint (repeat the command
to resume); 130 stopped at once; 1 a deadline passed, or other failures used up the restart budget.
If the rank that caused the job's failure exits with 64, 65 or 70, the run exits with the same code.
Exit codes of restarted ranks do not count.)";

constexpr int kExitKilled = 130;
constexpr char kTraceFile[] = "trace.json";
constexpr std::chrono::milliseconds kRefresh{200};

struct RunOptions {
  std::string manifest;
  std::string run_dir;
  int64_t nodes = 0;
  int64_t procs = 0;
  int64_t steps = 0;
  std::string output = "text";
  bool plain = false;
  int64_t trace_steps = 0;
  std::string metrics_address;
  bool retry = false;
  std::vector<std::string> env_from;
};

/// In a cluster a pod has the GPUs that it asks for, here those that there are.
bool counts_gpus(const api::TrainingJobSpec& spec) {
  return spec.num_proc_per_node == api::kAutoProcPerNode && api::gpus_of_trainer(spec) == 0;
}

int64_t gpus_here() { return count_visible_gpus(); }

/// The manifest with what the command line says in its place, checked as a whole.
Result<api::TrainingJob> load_job(const RunOptions& options) {
  const auto amend = [&](api::TrainingJobSpec& spec) {
    if (options.nodes > 0) spec.num_nodes = options.nodes;
    if (options.procs > 0) spec.num_proc_per_node = options.procs;
    if (options.steps > 0 && spec.engine) spec.engine->steps = options.steps;
    // One is what auto comes to by itself, and faults then say so.
    if (counts_gpus(spec) && gpus_here() > 1) spec.num_proc_per_node = gpus_here();
  };
  Result<api::TrainingJob> loaded = api::load_training_job(options.manifest, amend);
  if (!loaded) {
    Error error = loaded.error();
    // Lines of faults are those of the manifest, which says something else there.
    if (options.nodes > 0) error.message += "\n(--nodes counts in place of spec.numNodes)";
    if (options.procs > 0) error.message += "\n(--procs counts in place of spec.numProcPerNode)";
    if (options.steps > 0) error.message += "\n(--steps counts in place of engine.steps)";
    return error;
  }
  api::TrainingJob job = *std::move(loaded);
  if (options.steps > 0 && !job.spec.engine) {
    return Error{ErrorCode::kInvalidConfig, "--steps: found " + std::to_string(options.steps) +
                                                ", wanted none, because the manifest has no "
                                                "engine but a program of its own"};
  }
  if (counts_gpus(job.spec)) job.spec.num_proc_per_node = 1;
  // A file with an engine alone has met no number of ranks yet.
  const std::vector<api::Fault> faults = api::validate(job, options.manifest);
  if (!faults.empty()) return api::error_of(faults);
  const std::string& manager = job.spec.managed_by;
  if (!manager.empty() && manager != api::kManagedBy) {
    return Error{ErrorCode::kInvalidConfig, options.manifest + ": spec.managedBy: found " +
                                                manager + ", which manages this job, wanted " +
                                                api::kManagedBy +
                                                " or no managedBy, to run it here"};
  }
  if (job.spec.engine && job.spec.engine->runtime.threads == 0) {
    job.spec.engine->runtime.threads = threads_per_rank(
        usable_cpus(), control::policies::nodes_at_start(job.spec) * api::ranks_per_node(job.spec));
  }
  return job;
}

/// NAME=FILE of each --env-from, with the text of the file.
Result<std::map<std::string, std::string>> read_env_files(const std::vector<std::string>& given) {
  std::map<std::string, std::string> files;
  for (const std::string& item : given) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Error{ErrorCode::kInvalidConfig,
                   "--env-from: found \"" + item +
                       "\", wanted NAME=FILE, where NAME is the name of a ConfigMap or Secret"};
    }
    const std::string name = item.substr(0, equals);
    if (files.contains(name)) {
      return Error{ErrorCode::kInvalidConfig,
                   "--env-from: found \"" + name + "\" twice, wanted one file per name"};
    }
    TRAINYARD_ASSIGN(files[name], read_input(item.substr(equals + 1), api::kMaxManifestBytes));
  }
  return files;
}

/// The agent's binary: TRAINYARD_AGENT, else beside this one.
std::filesystem::path agent_path() {
  const char* variable = std::getenv("TRAINYARD_AGENT");  // NOLINT(concurrency-mt-unsafe)
  if (variable != nullptr && *variable != '\0') return std::filesystem::absolute(variable);
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "trainyard-agent";
}

/// TRAINYARD_WORKER; empty: not set.
std::string named_worker() {
  const char* variable = std::getenv("TRAINYARD_WORKER");  // NOLINT(concurrency-mt-unsafe)
  return variable == nullptr ? "" : variable;
}

/// The worker's binary as agents find it (agent/agent_options.h): TRAINYARD_WORKER, else beside the
/// agent's.
std::filesystem::path worker_path(const std::filesystem::path& agent) {
  const std::string named = named_worker();
  if (!named.empty()) return std::filesystem::absolute(named);
  return agent.parent_path() / "trainyard-worker";
}

std::unique_ptr<RunView> make_view(const RunOptions& options, const CommandContext& context) {
  if (options.output == "json") return make_json_view(context.out);
  const bool terminal = &context.out == &std::cout && ::isatty(STDOUT_FILENO) == 1;
  const char* kind = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): no other thread yet
  const bool dumb = kind == nullptr || std::string(kind) == "dumb";
  if (terminal && !dumb && !options.plain) return make_terminal_view(context.out);
  return make_plain_view(context.out);
}

/// Shows the run until it is over; the summary's exit code is the command's.
Summary follow(LocalRun& run, RunView& view, StopSignals& signals, CommandContext& context) {
  int signals_seen = 0;
  bool watched = false;
  bool told = false;
  // A stop that cannot be written down (a full disk) must not keep the user waiting for ever.
  auto stop_by = std::chrono::steady_clock::time_point::max();
  while (run.state() == LocalRun::State::kRunning) {
    watched = true;
    const int arrived = signals.wait(kRefresh);
    if (arrived > 0 && signals_seen == 0) {
      run.request_stop();
      stop_by = std::chrono::steady_clock::now() + run.stop_limit();
      view.notice({Notice::Kind::kMessage,
                   "",
                   "stopping after a checkpoint; a second Ctrl-C stops at once",
                   {}});
    }
    signals_seen += arrived;
    run.check_directory();
    run.press_stop();
    view.update(run.snapshot());  // first: the history notes at which step something happened
    for (const Notice& notice : run.take_notices())
      view.notice(notice);
    if (!context.out.good() && !std::exchange(told, true)) {
      context.err << "trainyard run: standard output can no longer be written; the run continues, "
                     "its status is in "
                  << run.header().run_dir << "/status.json; Ctrl-C stops it\n"
                  << std::flush;
    }
    const bool too_late = std::chrono::steady_clock::now() > stop_by;
    if (signals_seen < 2 && !too_late) continue;
    run.kill();
    Summary summary = run.summary();
    if (too_late) {
      summary.reason = "it did not stop within " + std::to_string(run.stop_limit().count()) +
                       " s (see the warnings above); its processes were killed";
    }
    summary.outcome = Summary::Outcome::kKilled;
    summary.exit_code = kExitKilled;
    return summary;
  }
  if (watched) view.update(run.snapshot());  // what the ranks said last
  for (const Notice& notice : run.take_notices())
    view.notice(notice);
  return run.summary();
}

/// The command that goes on with this run as it is, or to so many steps.
std::string same_command(const RunOptions& options, int64_t steps) {
  std::string command = "trainyard run " + shell_word(options.manifest);
  if (!options.run_dir.empty()) command += " --run-dir " + shell_word(options.run_dir);
  if (options.nodes > 0) command += " --nodes " + std::to_string(options.nodes);
  if (options.procs > 0) command += " --procs " + std::to_string(options.procs);
  for (const std::string& file : options.env_from)
    command += " --env-from " + shell_word(file);
  if (steps > 0) command += " --steps " + std::to_string(steps);
  return command;
}

std::vector<std::string> next_commands(const RunOptions& options, const LocalRun& run,
                                       const api::TrainingJobSpec& spec, const Summary& summary) {
  std::vector<std::string> commands;
  if (summary.directory_gone) return commands;
  if (summary.outcome != Summary::Outcome::kComplete) {
    const bool can_go_on = summary.outcome != Summary::Outcome::kFailed;
    if (can_go_on) {
      commands.push_back(same_command(options, options.steps));
    } else if (summary.step < summary.total_steps && !summary.diverged()) {
      commands.push_back(same_command(options, options.steps) + " --retry");
    }
    return commands;
  }
  if (!spec.engine) return commands;
  const std::string here = shell_word(from_here(run.header().run_dir));
  const std::string best = summary.best_checkpoint();
  const std::string model = best.empty() ? here : shell_word(from_here(best));
  commands.push_back("trainyard sample " + model);
  if (!spec.engine->data.validation.empty()) commands.push_back("trainyard evaluate " + model);
  if (summary.export_dir.empty()) {
    // What an export of an earlier step has written there is not replaced.
    std::error_code error;
    std::string folder = summary.job_name + "-hf";
    if (std::filesystem::exists(folder, error)) folder += "-" + std::to_string(summary.step);
    commands.push_back("trainyard export " + model + " " + shell_word(folder));
  }
  if (!summary.stopped_early && summary.step > 0 && options.manifest != "-")
    commands.push_back(same_command(options, 2 * summary.step));
  commands.push_back("trainyard ckpt ls " + here);
  return commands;
}

/// Puts the ranks' traces together as RUN/trace.json. A run whose ranks left none is told so.
void add_trace(const std::filesystem::path& run_dir, RunView& view, Summary& summary) {
  std::vector<std::string> notes;
  const auto merged = trace::merge_traces(run_dir / kTraceFolder, run_dir / kTraceFile, &notes);
  if (!merged) notes.push_back(merged.error().message);
  for (const std::string& note : notes)
    view.notice({Notice::Kind::kWarning, "NoTrace", note, {}});
  if (!merged) return;
  summary.trace_file = merged->file.string();
  for (const trace::RankTrace& rank : merged->ranks) {
    summary.traced_ranks.push_back(
        {.rank = rank.rank,
         .steps = rank.steps,
         .communication_s = 1e-9 * static_cast<double>(rank.overlap.communication_ns),
         .hidden = rank.overlap.hidden()});
  }
}

/// A manifest or a run directory that cannot be used is the user's to mend.
int exit_code_of(const Error& error) {
  const bool users = error.code == ErrorCode::kNotFound || error.code == ErrorCode::kConflict;
  if (users) return contract::kExitBadConfig;
  return contract::exit_code_of(error.code);
}

/// A run that cannot record where it is watched is worth a warning, no more.
void show_endpoint(StatusEndpoint& endpoint, LocalRun& run, RunView& view) {
  const Status attached = endpoint.attach(run);
  if (!attached) {
    view.notice({Notice::Kind::kWarning, "NotRecorded", attached.error().message, {}});
  }
  view.notice(
      {Notice::Kind::kMessage, "", "metrics at http://" + endpoint.address() + "/metrics", {}});
}

/// What there is to say of the run directory found.
std::vector<std::string> remarks_of(LocalRun& run, bool retry, const std::string& rates,
                                    bool has_engine) {
  std::vector<std::string> remarks;
  const bool is_new = run.header().generation == 0;
  if (retry && is_new) {
    remarks.emplace_back("there is no run to retry in " + run.header().run_dir +
                         ": this is a new one");
  }
  if (run.header().taken_up == control::local::TakenUp::kAfterFailure) {
    remarks.emplace_back("this run had failed; retrying from its newest checkpoint");
  }
  if (run.header().taken_up == control::local::TakenUp::kAfterCompletion) {
    remarks.emplace_back("this run was complete; training it further from its newest checkpoint");
  }
  if (!rates.empty()) remarks.push_back(rates);
  if (run.header().manifest_changed) {
    remarks.emplace_back(
        "the manifest or its options have changed since the last start; the new ones apply");
  }
  std::string unapplied;
  for (const std::string& field : run.header().unapplied_fields)
    unapplied += (unapplied.empty() ? "" : ", ") + field;
  if (!unapplied.empty()) {
    remarks.push_back("not applied on this machine, although a cluster applies them: " + unapplied);
  }
  if (run.state() != LocalRun::State::kFinished) return remarks;
  if (run.summary().outcome == Summary::Outcome::kFailed) {
    remarks.emplace_back(
        "this run is over: it failed. Fix the cause that the reason names: a changed manifest "
        "resumes from the newest checkpoint, --retry resumes with the unchanged manifest");
  } else {
    remarks.emplace_back("this run is over; use another --run-dir to train again");
    if (has_engine) {
      remarks.back() +=
          ". To train it further, use more --steps or raise engine.steps; to start another run "
          "from it, name a checkpoint in that run's engine.startFrom";
    }
  }
  return remarks;
}

Result<int> run_job(const RunOptions& options, CommandContext& context) {
  Result<api::TrainingJob> loaded = load_job(options);
  if (!loaded) {
    context.err << printable(loaded.error().message)
                << '\n';  // FILE:LINE: first, as `validate` prints them
    return contract::kExitBadConfig;
  }
  api::TrainingJob job = *std::move(loaded);
  LocalRunOptions run_options;
  run_options.run_dir = options.run_dir.empty() ? std::filesystem::path("runs") / job.metadata.name
                                                : std::filesystem::path(options.run_dir);
  Status fit = check_limits(job.spec);
  if (fit) fit = control::local::check_entries(run_options.run_dir);
  Foreseen foreseen;
  if (fit) {
    // The worker beside this program may have no CUDA, another one may.
    Result<Foreseen> checked = foresee(job, run_options.run_dir, options.trace_steps > 0,
                                       named_worker().empty() ? 0 : gpus_here());
    if (checked) {
      foreseen = *std::move(checked);
    } else {
      fit = checked.error();
    }
  }
  if (!fit) {
    context.err << options.manifest << ": " << printable(fit.error().message) << '\n';
    return contract::exit_code_of(fit.error().code);
  }
  TRAINYARD_ASSIGN(StopSignals signals, StopSignals::take());
  TRAINYARD_ASSIGN(run_options.env_files, read_env_files(options.env_from));
  const api::TrainingJobSpec spec = job.spec;
  run_options.job = std::move(job);
  run_options.agent = agent_path();
  run_options.trace_steps = options.trace_steps;
  std::unique_ptr<LocalRun> run;  // outlives the endpoint, which asks it
  std::unique_ptr<StatusEndpoint> endpoint;
  if (!options.metrics_address.empty()) {
    TRAINYARD_ASSIGN(endpoint, StatusEndpoint::listen(options.metrics_address));
  }
  run_options.worker = worker_path(run_options.agent);
  const char* crash = std::getenv(kEnvRunCrash);  // NOLINT(concurrency-mt-unsafe)
  if (crash != nullptr) run_options.crash = CrashPoints::parse(crash);
  if (options.retry) run_options.after_failure = control::local::AfterFailure::kTryAgain;
  TRAINYARD_ASSIGN(run, LocalRun::start(std::move(run_options)));
  const std::unique_ptr<RunView> view =
      make_live_view(make_recording_view(make_view(options, context), run->header().run_dir),
                     run->header().run_dir);
  view->begin(run->header());
  for (const std::string& remark :
       remarks_of(*run, options.retry, foreseen.rates, spec.engine.has_value()))
    view->notice({Notice::Kind::kMessage, "", remark, {}});
  if (!foreseen.doubt.empty()) view->notice({Notice::Kind::kWarning, "Memory", foreseen.doubt, {}});
  if (const std::string cpu = doubt_of_cpu_time(); !cpu.empty()) {
    view->notice({Notice::Kind::kWarning, "Limit", cpu, {}});
  }
  if (endpoint && run->state() == LocalRun::State::kRunning) show_endpoint(*endpoint, *run, *view);
  Summary summary = follow(*run, *view, signals, context);
  summary.next_commands = next_commands(options, *run, spec, summary);
  summary.planned_cut = foreseen.cut;
  summary.planned_bubble = foreseen.bubble;
  if (options.trace_steps > 0) add_trace(run->header().run_dir, *view, summary);
  view->end(summary);
  return summary.exit_code;
}

}  // namespace

void register_run(const Command& app, CommandContext& context) {
  const Command command = app.command("run", "Trains a TrainingJob on this machine.");
  auto options = std::make_shared<RunOptions>();
  command
      .option("MANIFEST", options->manifest, "TrainingJob in YAML or JSON; - reads standard input")
      .required();
  command.option("--run-dir", options->run_dir,
                 "Run directory (default runs/NAME; NAME is the name of the job)");
  command.option("--nodes", options->nodes, "Override spec.numNodes").between(1, api::kMaxNumNodes);
  command.option("--procs", options->procs, "Override spec.numProcPerNode, the ranks per node")
      .between(1, api::kMaxProcPerNode);
  command.option("--steps", options->steps, "Override engine.steps, to train a run further")
      .between(1, 1'000'000'000'000);
  command.output(options->output, "Output format; json prints one object per line");
  command.flag("--retry", options->retry, "Resume a failed run from its newest checkpoint");
  command.option(
      "--env-from", options->env_from,
      "NAME=FILE: use the lines VARIABLE=VALUE of FILE for the ConfigMap or Secret NAME in "
      "envFrom; repeatable");
  command.flag("--plain", options->plain,
               "Print lines instead of a status block that is redrawn in place");
  command
      .flag("--trace", options->trace_steps, contract::kTraceStepsDefault,
            "Write a trace of the last steps (--trace=N: of the last N) to RUN/trace.json")
      .between(1, contract::kTraceStepsMax);
  command.option(
      "--metrics-address", options->metrics_address,
      "HOST:PORT for /metrics, /healthz and /readyz, such as 127.0.0.1:9100 or [::1]:9100; "
      ":9100 listens on all addresses, port 0 picks a free port (default: none)");
  command.footer(kFooter);
  command.runs([options, &context] {
    const Result<int> code = run_job(*options, context);
    if (!code) context.err << "trainyard run: " << printable(code.error().message) << '\n';
    context.exit_code = code ? *code : exit_code_of(code.error());
  });
}

}  // namespace trainyard::cli
