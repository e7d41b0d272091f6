#include <algorithm>
#include <cstdio>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/registry.h"
#include "common/api/enum_names.h"
#include "common/text/json_writer.h"
#include "common/worker_contract.h"
#include "kernels/cpu/isa.h"
#include "worker/matrix/matrix.h"
#include "worker/model/family.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] =
    R"(Trains one small model (GPT-2, or --model) with prime sizes, dropout 0.1, active clipping and
weight decay. A cell is one run on 1 to 6 ranks (pipeline x dp x shard) with a ZeRO stage, a
pipeline schedule and a recompute mode. The cells cover all transports, micro-batch splits, thread
counts and instruction sets, in fp32 and bf16. Compares, bit for bit, the final states, the weights
in the type that ops read, and the loss and gradient norm of each step. Compares three values of
each rank with formulas: its FLOPs, the bytes it holds for each purpose, and the bytes it sends.

Some cells train another model. Their reference is a single-process run of that model. Interleaved
cells with too many stages for the model of 2 layers train a model of 10 layers. Cells with tensor
ranks train a model of 12 heads with tensorChunks 12. Cells with sequenceParallel or with context
ranks (contextMode Ulysses or Ring) train the 12-head model. Their sequence length is divisible by
the number of ranks that share a sequence. No such cell has more ranks than the largest value of
--ranks.

By default, the cells cover each pair of values of two axes; --full trains all combinations. Ranks
are threads of this process, even with shm and tcp.

Examples:
  trainyard matrix --quick
  trainyard matrix                    (a minute on two cores)
  trainyard matrix --model qwen3
  trainyard matrix --ranks 4 --zero-stages 2,3 --transports shm,tcp -o json

Exit codes: 0 one hash per precision and every formula met; 70 otherwise.)";

const std::vector<std::string> kTransports = {"local", "shm", "tcp"};

struct Options {
  matrix::MatrixOptions matrix;
  std::string model = "gpt2";
  std::vector<std::string> transports;
  bool quick = false;
  std::string output = "text";
};

comm::TransportKind transport_of(const std::string& name) {
  for (const auto kind : {comm::TransportKind::kShm, comm::TransportKind::kTcp}) {
    if (comm::name_of(kind) == name) return kind;
  }
  return comm::TransportKind::kLocal;
}

const char* name_of(api::NumberFormat compute) {
  return compute == api::NumberFormat::kBF16 ? "bf16" : "fp32";
}

/// "2 x 1 x 3 x 2": stages, copies, shards and, where there are any, context ranks ("c 2", in a
/// ring "r 2") and tensor ranks; "s": with slices.
std::string divided(const matrix::Cell& cell) {
  const layout::Mesh mesh = cell.mesh();
  return std::to_string(mesh.pp) + " x " + std::to_string(mesh.dp) + " x " +
         std::to_string(mesh.fsdp) +
         (mesh.cp > 1 ? (mesh.ring ? " x r " : " x c ") + std::to_string(mesh.cp) : "") +
         (mesh.tp > 1 ? " x " + std::to_string(mesh.tp) + (mesh.slices ? " s" : "") : "");
}

std::string schedule(const matrix::Cell& cell) {
  return cell.pipeline == 1 ? "-" : std::string(api::name_of(cell.schedule));
}

/// "Interleaved 2": with the stages of each rank.
std::string schedule_text(const matrix::Cell& cell) {
  return schedule(cell) + (cell.chunks > 1 ? " " + std::to_string(cell.chunks) : "");
}

std::string recompute(const matrix::Cell& cell) {
  return cell.recompute == api::Recompute::kNone ? "-" : std::string(api::name_of(cell.recompute));
}

std::string strategy(const matrix::Cell& cell) {
  if (cell.mode == api::ParallelMode::kDataParallel) return "rank 0";
  return "ZeRO-" + std::to_string(cell.zero_stage);
}

void print_row(const matrix::Row& row, std::ostream& out) {
  char line[160];
  std::snprintf(
      line, sizeof line, "%-4s  %-13s  %-13s  %-9s  %-6s  %-9s %5lld  %7d  %-11s %s  %6.2f s  %s\n",
      name_of(row.compute), divided(row.cell).c_str(), schedule_text(row.cell).c_str(),
      recompute(row.cell).c_str(), strategy(row.cell).c_str(),
      std::string(comm::name_of(row.cell.transport)).c_str(),
      static_cast<long long>(row.cell.micro_sequences), row.cell.cpu.threads,
      std::string(kernels::name_of(row.cell.cpu.isa)).c_str(), row.state_hash.substr(0, 16).c_str(),
      row.seconds, row.faults.empty() ? "ok" : "FAULT");
  out << line;
  for (const std::string& fault : row.faults)
    out << "      " << fault << "\n";
  out << std::flush;
}

void print_json(const matrix::MatrixResult& result, std::ostream& out) {
  text::JsonWriter json;
  json.begin_object();
  json.key("rows");
  json.begin_array();
  for (const matrix::Row& row : result.rows) {
    json.begin_object();
    json.key("compute");
    json.string(name_of(row.compute));
    json.key("ranks");
    json.integer(row.cell.ranks);
    json.key("pipeline");
    json.integer(row.cell.pipeline);
    json.key("schedule");
    json.string(schedule(row.cell));
    json.key("chunks");
    json.integer(row.cell.chunks);
    json.key("layers");
    json.integer(row.layers);
    json.key("heads");
    json.integer(row.heads);
    json.key("recompute");
    json.string(api::name_of(row.cell.recompute));
    json.key("dp");
    json.integer(row.cell.mesh().dp);
    json.key("shard");
    json.integer(row.cell.mesh().fsdp);
    json.key("tensor");
    json.integer(row.cell.tensor);
    json.key("context");
    json.integer(row.cell.context);
    json.key("contextMode");
    json.string(row.cell.ring ? "Ring" : "Ulysses");
    json.key("sequenceParallel");
    json.boolean(row.cell.slices);
    json.key("sequenceLength");
    json.integer(row.sequence_length);
    json.key("strategy");
    json.string(strategy(row.cell));
    json.key("transport");
    json.string(comm::name_of(row.cell.transport));
    json.key("microSequences");
    json.integer(row.cell.micro_sequences);
    json.key("threads");
    json.integer(row.cell.cpu.threads);
    json.key("isa");
    json.string(kernels::name_of(row.cell.cpu.isa));
    json.key("stateHash");
    json.string(row.state_hash);
    json.key("seconds");
    json.number(row.seconds);
    json.key("faults");
    json.begin_array();
    for (const std::string& fault : row.faults)
      json.string(fault);
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.key("faultyRows");
  json.integer(result.faulty);
  json.key("hashes");
  json.begin_array();
  for (const std::vector<std::string>& of_model : result.hashes) {
    for (const std::string& hash : of_model) {
      if (!hash.empty()) json.string(hash);
    }
  }
  for (const auto* of_shared : {&result.tensor_hashes, &result.sliced_hashes,
                                &result.context_hashes, &result.ring_hashes}) {
    for (const std::string& hash : *of_shared) {
      if (!hash.empty()) json.string(hash);
    }
  }
  json.end_array();
  json.end_object();
  out << json.take() << "\n";
}

Status run(Options& options, CommandContext& context) {
  if (options.quick && options.matrix.full) {
    return Error{ErrorCode::kInvalidConfig, "--quick: found --full as well, wanted one of them"};
  }
  if (std::ranges::find(options.matrix.contexts, 3) != options.matrix.contexts.end())
    return Error{ErrorCode::kInvalidConfig, "--contexts: found 3, wanted 2 or 4; --rings takes 3"};
  if (options.quick) {
    // What was asked for by name stays.
    const matrix::MatrixOptions whole;
    const auto shorten = [](auto& found, const auto& whole_value, auto shorter) {
      if (found == whole_value) found = std::move(shorter);
    };
    shorten(options.matrix.ranks, whole.ranks, std::vector{1, 3, 4});
    shorten(options.matrix.micro_sequences, whole.micro_sequences, std::vector<int64_t>{1, 4});
    shorten(options.matrix.layers, whole.layers, std::vector<int64_t>{2});
    shorten(options.transports, kTransports, std::vector<std::string>{"shm", "tcp"});
    shorten(options.matrix.steps, whole.steps, int64_t{3});
  }
  TRAINYARD_ASSIGN(const engine::Family* const family,
                   engine::find_family(std::string_view(options.model)));
  options.matrix.family = family->family;
  if (options.matrix.window > 0) {
    api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32, family->family);
    spec.model.sliding_window = options.matrix.window;
    const auto built = engine::build_model(spec.model);
    if (!built) return built.error().with_context("--window");
  }
  options.matrix.transports.clear();
  for (const std::string& name : options.transports) {
    options.matrix.transports.push_back(transport_of(name));
  }
  const bool as_text = options.output == "text";
  if (as_text) {
    context.out
        << "type  pp dp s tp     schedule       recompute  states  transport micro  threads  "
           "isa         state hash            time\n";
  }
  TRAINYARD_ASSIGN(const matrix::MatrixResult result,
                   matrix::run_matrix(options.matrix, [&](const matrix::Row& row) {
                     if (as_text) print_row(row, context.out);
                   }));
  if (as_text) {
    context.out << result.rows.size() << " cells, " << result.faulty << " faulty";
    for (size_t model = 0; model < result.hashes.size(); ++model) {
      for (size_t i = 0; i < result.hashes[model].size(); ++i) {
        const std::string& hash = result.hashes[model][i];
        if (hash.empty()) continue;
        context.out << ", hash " << name_of(options.matrix.computes[i]);
        if (model > 0) context.out << " of " << options.matrix.layers[model] << " layers";
        context.out << " " << hash;
      }
    }
    for (size_t i = 0; i < result.tensor_hashes.size(); ++i) {
      context.out << ", hash " << name_of(options.matrix.computes[i]) << " of 12 heads "
                  << result.tensor_hashes[i];
    }
    for (size_t i = 0; i < result.sliced_hashes.size(); ++i) {
      context.out << ", hash " << name_of(options.matrix.computes[i]) << " of slices "
                  << result.sliced_hashes[i];
    }
    for (size_t i = 0; i < result.context_hashes.size(); ++i) {
      context.out << ", hash " << name_of(options.matrix.computes[i]) << " of context ranks "
                  << result.context_hashes[i];
    }
    for (size_t i = 0; i < result.ring_hashes.size(); ++i) {
      context.out << ", hash " << name_of(options.matrix.computes[i]) << " of rings "
                  << result.ring_hashes[i];
    }
    context.out << "\n";
  } else {
    print_json(result, context.out);
  }
  if (result.faulty > 0) context.exit_code = contract::kExitBug;
  return {};
}

}  // namespace

void register_matrix(const Command& app, CommandContext& context) {
  const Command command =
      app.command("matrix", "Checks that all layouts give bit-identical results.");
  auto options = std::make_shared<Options>();
  options->transports = kTransports;
  options->matrix.tensors = {2, 3, 4};
  options->matrix.slices = {2, 3, 4};
  options->matrix.contexts = {2, 4};
  options->matrix.rings = {2, 3, 4};
  command.option("--ranks", options->matrix.ranks, "Numbers of ranks")
      .separated_by(',')
      .between(1, 11)
      .show_default();
  command.option("--zero-stages", options->matrix.zero_stages, "ZeRO stages: 0, 1, 2, 3")
      .separated_by(',')
      .between(0, 3)
      .show_default();
  command.option("--pipelines", options->matrix.pipelines, "Numbers of pipeline stages")
      .separated_by(',')
      .between(1, 4)
      .show_default();
  command.option("--chunks", options->matrix.chunks, "Stages per rank; above 1: interleaved")
      .separated_by(',')
      .between(1, 4)
      .show_default();
  command
      .option("--tensors", options->matrix.tensors,
              "Numbers of tensor ranks, for the model of 12 heads")
      .separated_by(',')
      .between(2, 12)
      .show_default();
  command
      .option("--slices", options->matrix.slices,
              "Numbers of tensor ranks in cells with sequenceParallel")
      .separated_by(',')
      .between(2, 12)
      .show_default();
  command
      .option("--contexts", options->matrix.contexts,
              "Numbers of context ranks in cells with contextMode Ulysses and 1 or 2 tensor ranks")
      .separated_by(',')
      .between(2, 4)
      .show_default();
  command
      .option("--rings", options->matrix.rings,
              "Numbers of context ranks in cells with contextMode Ring; Ulysses is compared on the "
              "same sequences")
      .separated_by(',')
      .between(2, 4)
      .show_default();
  command
      .option("--layers", options->matrix.layers,
              "Layers of the models, ascending; a cell trains the first model with enough layers")
      .separated_by(',')
      .between(1, 30)
      .show_default();
  command.option("--model", options->model, "Architecture: gpt2, llama, qwen2, qwen3 or mistral")
      .one_of({"gpt2", "llama", "qwen2", "qwen3", "mistral"})
      .show_default();
  command.option("--transports", options->transports, "Transports: local, shm, tcp")
      .separated_by(',')
      .one_of({"local", "shm", "tcp"})
      .show_default();
  command.option("--micro-sequences", options->matrix.micro_sequences, "Micro-batch sizes")
      .separated_by(',')
      .between(1, 11)
      .show_default();
  command.option("--threads", options->matrix.threads, "Threads per rank")
      .separated_by(',')
      .between(1, 64)
      .show_default();
  command.option("--steps", options->matrix.steps, "Optimizer steps per cell")
      .between(1, 1000)
      .show_default();
  command.flag("--cut", options->matrix.cut,
               "Use tensorChunks 3, grainTokens 13 and keyBlock 13 instead of the defaults");
  command.option("--window", options->matrix.window, "Attention window in tokens; 0: none")
      .between(0, 28)
      .show_default();
  command.flag("--isolate", options->matrix.isolate, "Isolate documents from each other");
  command.flag("--quick", options->quick,
               "Train with 1, 3 and 4 ranks, two micro-batch sizes and three steps");
  command.flag("--full", options->matrix.full,
               "Train all combinations of the axes, about 15,000 cells");
  command.output(options->output);
  command.footer(kFooter);
  command.runs(
      [options, &context] { finish(run(*options, context), "trainyard matrix", context); });
}

}  // namespace trainyard::cli
