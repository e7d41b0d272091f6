#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "cli/numerics_view.h"
#include "cli/plan_view.h"
#include "common/api/enum_names.h"
#include "common/text/json_writer.h"

namespace trainyard::cli {
namespace {

using engine::Instruction;
using text::JsonWriter;

class Writer {
 public:
  explicit Writer(int indent) : json(indent) {}
  void integer(std::string_view key, int64_t value) {
    json.key(key);
    json.integer(value);
  }
  void number(std::string_view key, double value) {
    json.key(key);
    json.number(value);
  }
  void string(std::string_view key, std::string_view value) {
    json.key(key);
    json.string(value);
  }
  /// On one line.
  void integers(std::string_view key, const std::vector<int>& values) {
    JsonWriter line;
    line.begin_array();
    for (const int value : values)
      line.integer(value);
    line.end_array();
    json.key(key);
    json.raw(line.take());
  }

  JsonWriter json;
};

/// "master weights" as a key: "masterWeights".
std::string key_of(std::string_view name) {
  std::string key;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == ' ') continue;
    const bool begins = i > 0 && name[i - 1] == ' ';
    key += begins ? static_cast<char>(std::toupper(static_cast<unsigned char>(name[i]))) : name[i];
  }
  return key;
}

void add_memory(Writer& out, const engine::MemoryPlan& plan, int rank) {
  const engine::RankMemory& memory = plan.ranks()[static_cast<size_t>(rank)];
  out.json.key("bytes");
  out.json.begin_object();
  for (size_t i = 0; i < engine::kMemoryPurposes; ++i)
    out.integer(key_of(name_of(static_cast<engine::MemoryPurpose>(i))), memory.bytes[i]);
  out.json.end_object();
  out.integer("totalBytes", memory.total());
  out.integer("hostBytes", plan.host_bytes(rank));
  out.integer("gpuBytes", plan.whole_gpu_bytes(rank));
}

void add_stage(Writer& out, const engine::MemoryPlan& plan) {
  const engine::StepCost cost = plan.step_of(plan.largest_rank());
  out.integer("largestRank", plan.largest_rank());
  add_memory(out, plan, plan.largest_rank());
  out.integer("bytesSentPerStep", cost.bytes_sent);
  out.integer("flopsPerStep", cost.flops);
  out.integer("recomputeFlopsPerStep", cost.recompute_flops);
}

void add_cut(Writer& out, const engine::MemoryPlan& plan) {
  if (plan.stages().size() == 1) return;
  out.json.key("pipeline");
  out.json.begin_array();
  const std::vector<int64_t> blocks = blocks_of(plan.stages());
  const std::vector<double> shares = shares_of(plan);
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    out.json.begin_object();
    out.integer("blocks", blocks[stage]);
    out.number("partOfFlops", shares[stage]);
    out.json.end_object();
  }
  out.json.end_array();
}

/// The passes of a program in the order in which they begin, as [kind, micro-batch, stage, chunk].
std::string passes_of(const engine::MemoryPlan& plan, int rank) {
  const layout::StageMap& stages = plan.stages();
  std::map<std::pair<int, int>, unsigned> begun;  // by micro-batch and stage: kinds, one bit each
  JsonWriter line;
  line.begin_array();
  for (const Instruction& i : plan.program_of(rank)) {
    if (!is_pass(i.kind) || i.kind == engine::InstructionKind::kRecompute) continue;
    const int stage = stages.stage_of(i.layer);
    unsigned& kinds = begun[{i.micro_batch, stage}];
    const unsigned bit = 1U << static_cast<unsigned>(i.kind);
    if ((kinds & bit) != 0) continue;
    kinds |= bit;
    line.begin_array();
    line.string(name_of(i.kind));
    line.integer(i.micro_batch);
    line.integer(stage);
    line.integer(stage / stages.ranks());
    line.end_array();
  }
  line.end_array();
  return line.take();
}

void add_schedule(Writer& out, const engine::MemoryPlan& plan) {
  const layout::StageMap& stages = plan.stages();
  const layout::Mesh& mesh = plan.setup().mesh;
  const engine::Bubble bubble =
      bubble_of(plan.setup().spec.parallelism.pipeline_schedule, stages,
                static_cast<int>(plan.rounds()), mean_times(plan, engine::PassCosts::kFlops));
  out.json.key("schedule");
  out.json.begin_object();
  out.string("name", api::name_of(plan.setup().spec.parallelism.pipeline_schedule));
  out.integer("microBatches", plan.rounds());
  out.string("bubbleFormula", bubble.formula);
  out.number("bubble", bubble.share);
  out.json.key("stages");
  out.json.begin_array();
  for (int stage = 0; stage < stages.size(); ++stage) {
    const engine::OpFlops flops = plan.flops_of_stage(stage);
    const layout::Range layers = stages.layers(stage);
    out.json.begin_object();
    out.integer("stage", stage);
    out.integer("chunk", stage / stages.ranks());
    out.integer("layersBegin", layers.begin);
    out.integer("layersEnd", layers.end);
    out.json.key("flopsPerSequence");
    out.json.begin_object();
    out.integer("F", flops.forward);
    out.integer("RECOMPUTE", flops.recompute);
    out.integer("B", flops.backward_input);
    out.integer("W", flops.backward_weight);
    out.json.end_object();
    out.json.end_object();
  }
  out.json.end_array();

  // A program's passes follow from the place in the pipeline and the number of micro-batches.
  std::map<std::pair<int, size_t>, std::vector<int>> programs;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const int pp = layout::coordinate_of(mesh, rank).pp;
    programs[{pp, plan.micro_batches_of(rank).size()}].push_back(rank);
  }
  out.json.key("programs");
  out.json.begin_array();
  for (const auto& [key, ranks] : programs) {
    out.json.begin_object();
    out.integers("ranks", ranks);
    out.integer("microBatches", static_cast<int64_t>(key.second));
    out.json.key("passes");
    out.json.raw(passes_of(plan, ranks.front()));
    out.json.end_object();
  }
  out.json.end_array();
  out.json.end_object();
}

/// What each rank holds, computes and sends; ranks that are alike are one entry.
void add_ranks(Writer& out, const engine::MemoryPlan& plan) {
  using Figures = std::tuple<engine::RankMemory, int64_t, int64_t, engine::StepCost>;
  std::map<Figures, std::vector<int>> alike;
  for (int rank = 0; rank < plan.setup().mesh.size(); ++rank) {
    alike[{plan.ranks()[static_cast<size_t>(rank)], plan.host_bytes(rank), plan.driver_bytes(rank),
           plan.step_of(rank)}]
        .push_back(rank);
  }
  std::vector<std::pair<const engine::StepCost*, const std::vector<int>*>> groups;
  for (const auto& [what, ranks] : alike)
    groups.emplace_back(&std::get<engine::StepCost>(what), &ranks);
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a.second->front() < b.second->front(); });
  out.json.key("rankGroups");
  out.json.begin_array();
  for (const auto& [cost, ranks] : groups) {
    out.json.begin_object();
    out.integers("ranks", *ranks);
    add_memory(out, plan, ranks->front());
    out.integer("flopsPerStep", cost->flops);
    out.integer("recomputeFlopsPerStep", cost->recompute_flops);
    out.integer("bytesSentPerStep", cost->bytes_sent);
    out.json.key("sentPerStep");
    out.json.begin_array();
    for (const engine::SentBytes& sent : cost->sent) {
      Writer line(0);
      line.json.begin_object();
      line.string("operation", sent.operation);
      line.string("group", sent.group);
      line.integer("times", sent.times);
      line.integer("bytes", sent.bytes);
      line.json.end_object();
      out.json.raw(line.json.take());
    }
    out.json.end_array();
    out.json.end_object();
  }
  out.json.end_array();
}

void add_program(Writer& out, const engine::MemoryPlan& plan, int rank) {
  const layout::Mesh& mesh = plan.setup().mesh;
  out.json.key("program");
  out.json.begin_object();
  out.integer("rank", rank);
  out.json.key("instructions");
  out.json.begin_array();
  for (const Instruction& i : plan.program_of(rank)) {
    Writer line(0);
    line.json.begin_object();
    line.string("kind", name_of(i.kind));
    if (i.micro_batch >= 0) line.integer("microBatch", i.micro_batch);
    if (i.layer >= 0) line.integer("layer", i.layer);
    if (i.unit >= 0) line.integer("unit", i.unit);
    if (i.peer >= 0) {
      layout::Coordinate peer = layout::coordinate_of(mesh, rank);
      peer.pp = i.peer;
      line.integer("peer", layout::rank_of(mesh, peer));
    }
    line.json.end_object();
    out.json.raw(line.json.take());
  }
  out.json.end_array();
  out.json.end_object();
}

}  // namespace

std::string plan_json(const JobPlan& job, std::optional<int> rank) {
  const engine::MemoryPlan& own = job.own_plan();
  Writer out(2);
  out.json.begin_object();
  out.string("job", job.name);
  out.integer("parameters", own.parameters());
  out.integer("publishedStateBytes", kPublishedStateBytes * own.parameters());
  out.integer("ranks", job.ranks);
  out.integer("zeroStage", job.own());
  out.string("device", api::name_of(job.spec.device));
  out.string("layout", job.layout);
  out.string("documents", api::name_of(job.spec.data.documents));
  write_numerics(out.json, job.spec);
  add_cut(out, own);
  out.json.key("stages");
  out.json.begin_array();
  for (const StagePlan& stage : job.stages) {
    out.json.begin_object();
    out.integer("zeroStage", &stage - job.stages.data());
    if (stage.plan) {
      add_stage(out, *stage.plan);
    } else {
      out.string("refusal", stage.refusal);
    }
    out.json.end_object();
  }
  out.json.end_array();
  add_schedule(out, own);
  add_ranks(out, own);
  if (rank) add_program(out, own, *rank);
  out.integer("availableBytes", job.room.bytes);
  out.json.key("fits");
  out.json.boolean(job.doubt.empty());
  out.string("doubt", job.doubt);
  if (!job.sharding_doubt.empty()) out.string("warning", job.sharding_doubt);
  if (job.pod_limit) {
    out.integer("podLimitBytes", *job.pod_limit);
    out.string("podDoubt", job.pod_doubt);
  }
  out.json.end_object();
  return out.json.take() + "\n";
}

}  // namespace trainyard::cli
