#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>

#include "cli/commands.h"
#include "cli/plan_view.h"
#include "cli/registry.h"
#include "cli/run/limits.h"
#include "cli/run/local_run.h"
#include "cli/run/terminal.h"
#include "common/api/decode.h"
#include "common/api/job_size.h"
#include "common/api/validate.h"
#include "common/io/control_group.h"
#include "common/io/file.h"
#include "common/layout/mesh.h"
#include "common/worker_contract.h"
#include "control/policies/elastic.h"
#include "worker/data/dataset.h"
#include "worker/data/text/tokenizer.h"
#include "worker/device/cpu_device.h"
#include "worker/hf/model_folder.h"
#include "worker/job/job_plan.h"
#include "worker/job/resolve.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"(Examples:
  trainyard plan job.yaml
  trainyard plan job.yaml --ranks 64 --svg plan.svg
  trainyard plan job.yaml --program --svg program.svg
  trainyard plan job.yaml -o json

For each ZeRO stage, shows the memory, FLOPs and bytes sent of the rank that needs the most memory.
An asterisk (*) marks the ZeRO stage of the manifest. `plan` allocates no tensors. It reads the data
only if the manifest does not give the size of the vocabulary. The last lines say whether all ranks
fit into the memory of this machine, which `trainyard run` also checks. If the manifest has a memory
limit, they also say whether the ranks of a pod fit into it. A job with `device: Auto` is planned
for CPUs, one with `device: Cuda` for GPUs of any size.

--program simulates and draws one step of one pipeline; only passes take time. F is a forward pass,
B computes gradients of inputs, W computes gradients of weights, and . is a rank that waits. The
drawing omits the middle of a long step. The bubble is the part of the step in which ranks wait.
With -o json, the output lists the passes of every rank; with --rank, it lists all instructions of
one rank.

Exit codes: 0 planned, whether the job fits or not; 64 wrong usage, a manifest or size that cannot
be planned, or an --svg file that cannot be written; 65 data or an imported model that cannot be
read.)";

constexpr int64_t kRanksMax = 65'536;
constexpr int kStages = 4;

struct Options {
  std::string manifest;
  std::string output = "text";
  std::string svg;
  int64_t ranks = 0;
  int64_t vocab = 0;
  int64_t rank = -1;
  bool program = false;
  bool unit_costs = false;
};

/// The spec with the sizes that the manifest leaves to an import or to the data.
/// `vocab`: --vocab, for where none of them tells; 0: not given.
Status complete(api::EngineSpec& spec, int64_t vocab) {
  std::optional<api::ModelSpec> imported;
  if (!spec.model.import_path.empty()) {
    auto model = hf::load_model(spec.model.import_path);
    if (!model) return model.error().with_context("engine.model.import");
    imported = (*model)->spec();
  } else if (spec.model.vocab == 0) {
    const auto tokens = data::TokenSet::open(std::span<const std::string>(spec.data.tokens));
    if (tokens) {
      spec.model.vocab = tokens->vocabulary();
    } else if (const auto tokenizer = data::open_tokenizer(spec.data.tokenizer);
               !spec.data.tokenizer.empty() && tokenizer) {
      spec.model.vocab = (*tokenizer)->vocabulary();
    } else if (vocab > 0) {
      spec.model.vocab = vocab;
    } else {
      return Error{tokens.error().code,
                   "engine.model.vocab: found nothing, wanted a number of tokens, or --vocab (256 "
                   "where the tokenizer is bytes), as engine.data.tokens cannot tell it here: " +
                       tokens.error().message};
    }
  }
  TRAINYARD_TRY(engine::resolve_spec(spec, imported));
  if (vocab == 0 || vocab == spec.model.vocab) return {};
  return Error{ErrorCode::kInvalidConfig, "--vocab: found " + std::to_string(vocab) + ", wanted " +
                                              std::to_string(spec.model.vocab) +
                                              " as the job has it, or no --vocab"};
}

/// `asked`: --ranks; 0: as the manifest says, which was held against the axes when it was read.
Status check_ranks(const api::TrainingJobSpec& spec, int64_t asked) {
  // That of an elastic job follows its ranks.
  const int64_t shard =
      spec.elastic_policy ? 1 : std::max<int64_t>(1, spec.engine->parallelism.shard);
  const int64_t pipeline = spec.engine->parallelism.pipeline;
  if (asked % (pipeline * shard) == 0) return {};
  return Error{
      ErrorCode::kInvalidConfig,
      "--ranks: found " + std::to_string(asked) + ", wanted a multiple of " +
          (pipeline > 1 ? "engine.parallelism.pipeline (" + std::to_string(pipeline) + ") x shard ("
                        : "engine.parallelism.shard (") +
          std::to_string(shard) + ")"};
}

/// Why `trainyard run` would refuse the job here, or warn of it; empty: it would not. `here`: the
/// job as it would run.
std::string doubt_of(const JobPlan& job, const api::TrainingJobSpec& here) {
  auto fits = engine::check_memory(job.own_plan(), {0, job.ranks}, job.spec, job.room);
  if (!fits) return fits.error().message;
  if (!fits->empty()) return *std::move(fits);
  Status allowed = check_limits(here);
  if (allowed) allowed = check_planned(here, job.own_plan());
  return allowed ? "" : allowed.error().message;
}

Result<JobPlan> plan(const Options& options) {
  TRAINYARD_ASSIGN(api::TrainingJob job, api::load_training_job(options.manifest));
  if (!job.spec.engine) {
    return Error{ErrorCode::kInvalidConfig,
                 "spec.engine: found none, wanted one: what other programs hold is not known"};
  }
  TRAINYARD_TRY(check_ranks(job.spec, options.ranks));
  job.spec.num_nodes = control::policies::nodes_at_start(job.spec);
  JobPlan result{.name = job.metadata.name, .spec = *std::move(job.spec.engine)};
  const int64_t per_node = api::ranks_per_node(job.spec);
  result.ranks = options.ranks > 0 ? options.ranks : job.spec.num_nodes * per_node;
  TRAINYARD_TRY(complete(result.spec, options.vocab));

  engine::JobPlace place{.ranks = result.ranks, .one_host = job.spec.num_nodes == 1};
  place.keeps_states = engine::keeps_states(job.spec);
  place.ranks_with_copies = engine::ranks_with_copies(job.spec);
  int64_t threads = result.spec.runtime.threads;
  if (threads == 0) threads = threads_per_rank(usable_cpus(), std::min(per_node, place.ranks));
  place.kernel_scratch_bytes = engine::cpu_scratch_bytes(static_cast<int>(threads));
  for (int stage = 0; stage < kStages; ++stage) {
    api::EngineSpec spec = result.spec;
    spec.parallelism.zero_stage = stage;
    if (stage == 0) spec.parallelism.shard = 0;
    // Rank 0 holds the states of all at stage 0 only.
    if (stage > 0) spec.parallelism.mode = api::ParallelMode::kDistributed;
    auto planned = engine::plan_job(spec, place);
    if (!planned && stage == result.own()) return planned.error();
    if (planned) {
      result.stages.push_back({*std::move(planned), ""});
    } else {
      result.stages.push_back({std::nullopt, planned.error().message});
    }
  }
  TRAINYARD_ASSIGN(const layout::Mesh mesh,
                   layout::mesh_of(result.spec.parallelism, static_cast<int>(result.ranks)));
  result.layout = layout::describe(result.spec.parallelism, mesh);
  result.room = engine::memory_room();
  api::TrainingJobSpec here = job.spec;
  here.engine = result.spec;
  here.engine->runtime.threads = threads;
  if (options.ranks > 0) here.num_nodes = 1;
  if (options.ranks > 0) here.num_proc_per_node = options.ranks;
  result.doubt = doubt_of(result, here);
  if (const auto& stage_1 = result.stages[1].plan)
    result.sharding_doubt = engine::sharding_doubt(result.own_plan(), *stage_1, result.room);
  result.pod_limit = api::trainer_memory_limit(job.spec);
  auto pods = engine::check_pod_memory(result.own_plan(), job.spec, result.spec);
  result.pod_doubt = pods ? *std::move(pods) : pods.error().message;
  return result;
}

/// `asked`: --rank; -1: none.
Status check_rank(int64_t asked, const JobPlan& job) {
  if (asked < job.ranks) return {};
  return Error{ErrorCode::kInvalidConfig, "--rank: found " + std::to_string(asked) +
                                              ", wanted a rank of the job, 0 to " +
                                              std::to_string(job.ranks - 1)};
}

Status run(const Options& options, CommandContext& context) {
  TRAINYARD_ASSIGN(const JobPlan job, plan(options));
  TRAINYARD_TRY(check_rank(options.rank, job));
  const std::optional<int> rank =
      options.rank < 0 ? std::nullopt : std::optional(static_cast<int>(options.rank));
  const auto costs = options.unit_costs ? engine::PassCosts::kUnits : engine::PassCosts::kFlops;
  Timeline timeline;
  if (options.program) {
    TRAINYARD_ASSIGN(timeline, planned_timeline(job.own_plan(), costs));
  }
  if (options.output == "json") {
    context.out << plan_json(job, rank);
  } else if (options.program) {
    context.out << program_text(job.own_plan(), costs, timeline, terminal::size().columns);
  } else if (!rank) {
    context.out << printable(plan_text(job));
  }
  if (rank && options.output != "json") context.out << program_list(job.own_plan(), *rank);
  if (options.svg.empty()) return {};
  const Status written = write_file_atomic(
      options.svg, options.program ? timeline_svg(timeline, true) : plan_svg(job));
  if (written) return {};
  return Error{ErrorCode::kInvalidConfig,
               "--svg: " + written.error().message + "; fix that or name another file"};
}

}  // namespace

void register_plan(const Command& app, CommandContext& context) {
  const Command command =
      app.command("plan", "Shows the memory, compute and traffic of a TrainingJob.");
  auto options = std::make_shared<Options>();
  command
      .option("MANIFEST", options->manifest, "TrainingJob in YAML or JSON; - reads standard input")
      .required();
  command.option("--ranks", options->ranks, "Number of ranks, instead of numNodes x numProcPerNode")
      .between(1, kRanksMax);
  command
      .option("--vocab", options->vocab,
              "Size of the vocabulary, if neither the manifest nor local data gives it")
      .between(1, int64_t{1} << 31);
  command.flag("--program", options->program, "Draw the pipeline schedule instead of the table");
  command.flag("--unit-costs", options->unit_costs,
               "With --program: let each pass of a stage take 1 unit of time, not its FLOPs");
  command.option("--rank", options->rank, "List all instructions of this rank")
      .between(0, kRanksMax - 1);
  command.option("--svg", options->svg,
                 "Write a bar chart of the bytes to this file; with --program, the schedule");
  command.output(options->output);
  command.footer(kFooter);
  command.runs([options, &context] { finish(run(*options, context), "trainyard plan", context); });
}

}  // namespace trainyard::cli
