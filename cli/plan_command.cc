#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/camel_keys.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/registry.h"
#include "cli/report/bars.h"
#include "cli/run/format.h"
#include "cli/run/limits.h"
#include "cli/run/local_run.h"
#include "common/api/decode.h"
#include "common/api/enum_names.h"
#include "common/api/job_size.h"
#include "common/api/memory_limit.h"
#include "common/api/validate.h"
#include "common/io/control_group.h"
#include "common/io/file.h"
#include "common/layout/mesh.h"
#include "common/text/json_writer.h"
#include "common/text/quantity.h"
#include "common/worker_contract.h"
#include "control/policies/elastic.h"
#include "worker/data/dataset.h"
#include "worker/hf/model_folder.h"
#include "worker/job/job_plan.h"
#include "worker/job/resolve.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"(Examples:
  trainyard plan job.yaml
  trainyard plan job.yaml --ranks 64 --svg plan.svg
  trainyard plan job.yaml -o json

Shows what the rank with the most memory of each ZeRO stage holds, computes and sends, before the job
runs; the stage of the manifest is marked with *. Nothing is allocated, and the data is read only where
the manifest leaves the vocabulary to it. The last lines say whether the ranks fit into this machine
together, as `trainyard run` checks it, and where the manifest limits the memory of its pods, whether
those of a pod fit into it.

Exit codes: 0 planned, whether it fits or not; 64 a manifest or a size that cannot be planned, or
an --svg that cannot be written; 65 data or an import that cannot be read.)";

constexpr int64_t kRanksMax = 65'536;
constexpr int kStages = 4;
constexpr size_t kColumns = 100;
/// Bytes of model states per parameter in mixed precision with Adam, none of them divided
/// (Rajbhandari et al. 2020, section 3.1).
constexpr int64_t kPublishedStateBytes = 16;

struct Options {
  std::string manifest;
  std::string output = "text";
  std::string svg;
  int64_t ranks = 0;
};

/// One stage beside the others; without a plan where it cannot be had, and why.
struct StagePlan {
  std::optional<engine::MemoryPlan> plan;
  std::string refusal;
};

struct JobPlan {
  std::string name;
  api::EngineSpec spec;
  int64_t ranks = 1;
  std::vector<StagePlan> stages;
  std::string layout;
  std::string doubt;  ///< why this machine does not hold it; empty: it does
  std::optional<int64_t> pod_limit;
  std::string pod_doubt;  ///< why that is too little; empty: it is not
  engine::MemoryRoom room;

  int own() const { return static_cast<int>(spec.parallelism.zero_stage); }
  const engine::MemoryPlan& own_plan() const { return *stages[static_cast<size_t>(own())].plan; }
};

/// The spec with the sizes that the manifest leaves to an import or to the data.
Status complete(api::EngineSpec& spec) {
  std::optional<api::ModelSpec> imported;
  if (!spec.model.import_path.empty()) {
    auto model = hf::load_model(spec.model.import_path);
    if (!model) return model.error().with_context("engine.model.import");
    imported = (*model)->spec();
  } else if (spec.model.vocab == 0) {
    const auto tokens = data::TokenSet::open(std::span<const std::string>(spec.data.tokens));
    if (!tokens) {
      return Error{tokens.error().code,
                   "engine.model.vocab: found nothing, wanted a number of tokens, as "
                   "engine.data.tokens cannot tell it here: " +
                       tokens.error().message};
    }
    spec.model.vocab = tokens->vocabulary();
  }
  return engine::resolve_spec(spec, imported);
}

/// `asked`: --ranks; 0: as the manifest says, which was held against the axes when it was read.
Status check_ranks(const api::TrainingJobSpec& spec, int64_t asked) {
  if (asked == 0 && spec.num_proc_per_node == api::kAutoProcPerNode) {
    return Error{ErrorCode::kInvalidConfig,
                 "spec.numProcPerNode: found auto, wanted a number, or --ranks: how many ranks a "
                 "node has is known on the node alone"};
  }
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
  TRAINYARD_TRY(complete(result.spec));

  engine::JobPlace place{.ranks = result.ranks, .one_host = job.spec.num_nodes == 1};
  place.threads = static_cast<int>(result.spec.runtime.threads);
  if (place.threads == 0) {
    place.threads =
        static_cast<int>(threads_per_rank(usable_cpus(), std::min(per_node, place.ranks)));
  }
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
  here.engine->runtime.threads = place.threads;
  if (options.ranks > 0) here.num_nodes = 1;
  if (options.ranks > 0) here.num_proc_per_node = options.ranks;
  result.doubt = doubt_of(result, here);
  result.pod_limit = api::trainer_memory_limit(job.spec);
  auto pods = engine::check_pod_memory(result.own_plan(), job.spec, result.spec);
  result.pod_doubt = pods ? *std::move(pods) : pods.error().message;
  return result;
}

/// A row of the table: a name and a cell for each stage.
template <typename Cell>
std::string row(const std::string& name, const JobPlan& job, const Cell& cell) {
  std::string line = fmt::format("{:<22}", name);
  for (const StagePlan& stage : job.stages)
    line += fmt::format("{:>17}", stage.plan ? cell(*stage.plan) : std::string("-"));
  return line + "\n";
}

std::string decimal_text(double value, const char* unit) {
  constexpr std::array<const char*, 7> kPrefixes = {"", "k", "M", "G", "T", "P", "E"};
  size_t prefix = 0;
  for (; value >= 1000 && prefix + 1 < kPrefixes.size(); ++prefix)
    value /= 1000;
  return fmt::format("{:.{}f} {}{}", value, prefix == 0 ? 0 : 2, kPrefixes[prefix], unit);
}

/// Transformer blocks of each stage: neither the embedding nor the head is one.
std::vector<int64_t> blocks_of(const layout::StageMap& stages) {
  std::vector<int64_t> blocks;
  for (int stage = 0; stage < stages.size(); ++stage) {
    const bool ends = stage + 1 == stages.size();
    blocks.push_back(stages.layers(stage).size() - (stage == 0 ? 1 : 0) - (ends ? 1 : 0));
  }
  return blocks;
}

/// What each stage computes, in parts of all.
std::vector<double> shares_of(const engine::MemoryPlan& plan) {
  const std::vector<int64_t>& flops = plan.flops_by_stage();
  std::vector<double> shares(flops.begin(), flops.end());
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares)
    share /= all;
  return shares;
}

/// What the rank that computes most computes, as a multiple of the mean.
double imbalance(const engine::MemoryPlan& plan, const std::vector<double>& shares) {
  const layout::StageMap& stages = plan.stages();
  std::vector<double> by_rank(static_cast<size_t>(stages.ranks()));
  for (int stage = 0; stage < stages.size(); ++stage)
    by_rank[static_cast<size_t>(stages.pp_of(stage))] += shares[static_cast<size_t>(stage)];
  return *std::max_element(by_rank.begin(), by_rank.end()) * stages.ranks();
}

/// Of a job with a pipeline: how it is cut.
std::string pipeline_text(const engine::MemoryPlan& plan) {
  const std::vector<int64_t> blocks = blocks_of(plan.stages());
  if (blocks.size() == 1) return "";
  const std::vector<double> shares = shares_of(plan);
  std::string cut;
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    cut +=
        fmt::format("{}{} ({:.0f} %)", stage == 0 ? "" : " + ", blocks[stage], 100 * shares[stage]);
  }
  const api::ParallelismSpec& parallelism = plan.setup().spec.parallelism;
  return wrapped(
      fmt::format("pipeline, {}: {} blocks, cut {}; the part of a step's FLOPs includes "
                  "the head's, which the last stage computes; the rank with most computes "
                  "{:.2f} times the mean",
                  api::name_of(parallelism.pipeline_schedule), cut,
                  parallelism.stages.empty() ? "by cost" : "by hand", imbalance(plan, shares)),
      kColumns);
}

std::string text_of(const JobPlan& job) {
  const engine::MemoryPlan& own = job.own_plan();
  const api::BatchSpec& batch = job.spec.batch;
  std::string text = fmt::format(
      "{}: {} parameters, {}, {} ranks: {}\n{} sequences of {} tokens a step, {} at once\n"
      "states at {} B per parameter, not divided: {}\n\n",
      job.name, grouped(own.parameters()), api::name_of(job.spec.precision.compute), job.ranks,
      job.layout, grouped(batch.global_sequences), grouped(job.spec.data.sequence_length),
      batch.micro_sequences, kPublishedStateBytes,
      decimal_text(static_cast<double>(kPublishedStateBytes * own.parameters()), "B"));
  if (const std::string pipeline = pipeline_text(own); !pipeline.empty()) text += pipeline + "\n";
  text += fmt::format("{:<22}", "largest rank");
  for (int stage = 0; stage < kStages; ++stage)
    text += fmt::format("{:>17}", fmt::format("stage {}{}", stage, stage == job.own() ? "*" : ""));
  text += "\n";
  for (size_t i = 0; i < engine::kMemoryPurposes; ++i) {
    const auto purpose = static_cast<engine::MemoryPurpose>(i);
    text += row("  " + std::string(name_of(purpose)), job, [&](const engine::MemoryPlan& plan) {
      return text::size_text(plan.largest().of(purpose));
    });
  }
  text += row("total", job, [](const engine::MemoryPlan& plan) {
    return text::size_text(plan.largest().total());
  });
  text += row("sent per step", job, [](const engine::MemoryPlan& plan) {
    return decimal_text(static_cast<double>(plan.step_of(plan.largest_rank()).bytes_sent), "B");
  });
  text += row("computed per step", job, [](const engine::MemoryPlan& plan) {
    return decimal_text(static_cast<double>(plan.step_of(plan.largest_rank()).flops), "FLOP");
  });
  text += row("rank", job,
              [](const engine::MemoryPlan& plan) { return std::to_string(plan.largest_rank()); });
  for (size_t stage = 0; stage < job.stages.size(); ++stage) {
    if (!job.stages[stage].plan) {
      text += fmt::format("stage {}: {}\n", stage, job.stages[stage].refusal);
    }
  }
  const std::string verdict = job.doubt.empty()
                                  ? "fits, " + text::size_text(job.room.bytes) + " available"
                                  : "does not fit: " + job.doubt;
  text += "\n" + wrapped("this machine: " + verdict, kColumns);
  if (!job.pod_limit) return text;
  return text + wrapped("its pods: " + (job.pod_doubt.empty() ? "fit into their limit of memory, " +
                                                                    text::size_text(*job.pod_limit)
                                                              : "do not fit: " + job.pod_doubt),
                        kColumns);
}

void add_stage(const engine::MemoryPlan& plan, text::JsonWriter& json) {
  const engine::StepCost cost = plan.step_of(plan.largest_rank());
  const auto integer = [&](const char* key, int64_t value) {
    json.key(key);
    json.integer(value);
  };
  integer("largest_rank", plan.largest_rank());
  json.key("bytes");
  json.begin_object();
  for (size_t i = 0; i < engine::kMemoryPurposes; ++i) {
    std::string name(name_of(static_cast<engine::MemoryPurpose>(i)));
    std::replace(name.begin(), name.end(), ' ', '_');
    integer(name.c_str(), plan.largest().bytes[i]);
  }
  json.end_object();
  integer("total_bytes", plan.largest().total());
  integer("bytes_sent_per_step", cost.bytes_sent);
  integer("flops_per_step", cost.flops);
}

std::string json_of(const JobPlan& job) {
  text::JsonWriter json;
  json.begin_object();
  json.key("job");
  json.string(job.name);
  json.key("parameters");
  json.integer(job.own_plan().parameters());
  json.key("published_state_bytes");
  json.integer(kPublishedStateBytes * job.own_plan().parameters());
  json.key("ranks");
  json.integer(job.ranks);
  json.key("zero_stage");
  json.integer(job.own());
  json.key("layout");
  json.string(job.layout);
  if (job.own_plan().stages().size() > 1) {
    json.key("pipeline");
    json.begin_array();
    const std::vector<int64_t> blocks = blocks_of(job.own_plan().stages());
    const std::vector<double> shares = shares_of(job.own_plan());
    for (size_t stage = 0; stage < blocks.size(); ++stage) {
      json.begin_object();
      json.key("blocks");
      json.integer(blocks[stage]);
      json.key("part_of_flops");
      json.number(shares[stage]);
      json.end_object();
    }
    json.end_array();
  }
  json.key("stages");
  json.begin_array();
  for (const StagePlan& stage : job.stages) {
    json.begin_object();
    json.key("zero_stage");
    json.integer(&stage - job.stages.data());
    if (stage.plan) {
      add_stage(*stage.plan, json);
    } else {
      json.key("refusal");
      json.string(stage.refusal);
    }
    json.end_object();
  }
  json.end_array();
  json.key("available_bytes");
  json.integer(job.room.bytes);
  json.key("fits");
  json.boolean(job.doubt.empty());
  json.key("doubt");
  json.string(job.doubt);
  if (job.pod_limit) {
    json.key("pod_limit_bytes");
    json.integer(*job.pod_limit);
    json.key("pod_doubt");
    json.string(job.pod_doubt);
  }
  json.end_object();
  return with_camel_keys(json.take()) + "\n";
}

std::string svg_of(const JobPlan& job) {
  constexpr double kGiB = 1 << 30;
  BarChart chart{.title = job.name + " on " + std::to_string(job.ranks) + " ranks, largest rank",
                 .unit = "GiB",
                 .layers = {},
                 .bars = {}};
  for (size_t i = 0; i < engine::kMemoryPurposes; ++i)
    chart.layers.emplace_back(name_of(static_cast<engine::MemoryPurpose>(i)));
  for (int stage = 0; stage < kStages; ++stage) {
    const auto& planned = job.stages[static_cast<size_t>(stage)].plan;
    if (!planned) continue;
    BarChart::Bar bar{.label = "stage " + std::to_string(stage), .marked = stage == job.own()};
    for (const int64_t bytes : planned->largest().bytes)
      bar.values.push_back(static_cast<double>(bytes) / kGiB);
    chart.bars.push_back(std::move(bar));
  }
  return render_bars(chart);
}

Status run(const Options& options, CommandContext& context) {
  TRAINYARD_ASSIGN(const JobPlan job, plan(options));
  context.out << (options.output == "json" ? json_of(job) : printable(text_of(job)));
  if (options.svg.empty()) return {};
  const Status written = write_file_atomic(options.svg, svg_of(job));
  if (written) return {};
  return Error{ErrorCode::kInvalidConfig,
               "--svg: " + written.error().message + "; mend that or name another file"};
}

}  // namespace

void register_plan(const Command& app, CommandContext& context) {
  const Command command =
      app.command("plan", "Shows what a TrainingJob holds, computes and sends, before it runs.");
  auto options = std::make_shared<Options>();
  command
      .option("MANIFEST", options->manifest, "A TrainingJob, YAML or JSON; - reads standard input")
      .required();
  command.option("--ranks", options->ranks, "Instead of numNodes x numProcPerNode")
      .between(1, kRanksMax);
  command.option("--svg", options->svg, "A file for the bytes as a bar chart");
  command.output(options->output);
  command.footer(kFooter);
  command.runs([options, &context] { finish(run(*options, context), "trainyard plan", context); });
}

}  // namespace trainyard::cli
