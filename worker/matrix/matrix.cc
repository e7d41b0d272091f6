#include "worker/matrix/matrix.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "common/api/job_size.h"
#include "common/random/philox.h"
#include "worker/matrix/covering.h"
#include "worker/matrix/formulas.h"

namespace trainyard::matrix {
namespace {

constexpr std::array kSchedules = {api::PipelineSchedule::kOneFOneB, api::PipelineSchedule::kGPipe,
                                   api::PipelineSchedule::kNaive,
                                   api::PipelineSchedule::kZeroBubbleH1};

constexpr std::array kRecompute = {api::Recompute::kNone, api::Recompute::kFull,
                                   api::Recompute::kSelective};

class Matrix {
 public:
  Matrix(const MatrixOptions& options, const std::function<void(const Row&)>& on_row)
      : options_(options), on_row_(on_row) {
    if (options_.isas.empty()) options_.isas = kernels::available_isas();
    for (const int ranks : options_.ranks) {
      for (const int pipeline : options_.pipelines) {
        for (const Cell& layout : layouts_of(ranks, options_.zero_stages, pipeline))
          add_layouts(layout);
      }
    }
    result_.hashes.assign(options_.layers.size(),
                          std::vector<std::string>(options_.computes.size()));
    first_.assign(options_.layers.size(), std::vector<RankFacts>(options_.computes.size()));
  }

  Result<MatrixResult> run() {
    TRAINYARD_TRY(run_plain());
    TRAINYARD_TRY(run_interleaved());
    TRAINYARD_TRY(
        run_shared(tensor_sharings(options_.tensors, false), tensor_spec, result_.tensor_hashes));
    if (options_.isolate) return std::move(result_);  // such documents cannot be shared out
    TRAINYARD_TRY(
        run_shared(tensor_sharings(options_.slices, true), sliced_spec, result_.sliced_hashes));
    TRAINYARD_TRY(
        run_shared(context_sharings(options_.contexts), context_spec, result_.context_hashes));
    // Rings take no window that is shorter than a sequence.
    if (options_.window == 0)
      TRAINYARD_TRY(run_shared(ring_sharings(options_.rings), ring_spec, result_.ring_hashes));
    return std::move(result_);
  }

 private:
  template <class Values>
  static int size(const Values& values) {
    return static_cast<int>(values.size());
  }
  template <class Values>
  static auto pick(const Values& values, int index) {
    return values[static_cast<size_t>(index)];
  }

  /// The first of the models with as many layers; the number of models: there is none.
  size_t model_of(const Cell& cell) const {
    const auto fits = [&](int64_t layers) {
      return int64_t{cell.pipeline} * cell.chunks <= layers + 2;
    };
    return static_cast<size_t>(std::find_if(options_.layers.begin(), options_.layers.end(), fits) -
                               options_.layers.begin());
  }

  void add_layouts(Cell layout) {
    for (const int chunks : options_.chunks) {
      layout.chunks = chunks;
      if (chunks > 1) layout.schedule = api::PipelineSchedule::kInterleaved;
      if (model_of(layout) == options_.layers.size()) continue;
      if (chunks == 1) {
        layouts_.push_back(layout);
      } else if (layout.pipeline > 1 && !interleaved_micro_sequences(layout).empty()) {
        interleaved_.push_back(layout);
      }
    }
  }

  Status run_plain() {
    if (layouts_.empty()) return {};
    const std::vector<int> sizes = {size(options_.computes),
                                    size(layouts_),
                                    size(options_.isas),
                                    size(options_.transports),
                                    size(options_.micro_sequences),
                                    size(options_.threads),
                                    size(kSchedules),
                                    size(kRecompute)};
    for (const std::vector<int>& row : options_.full ? product(sizes) : covering_array(sizes)) {
      Cell one = pick(layouts_, row[1]);
      one.cpu.isa = pick(options_.isas, row[2]);
      one.transport = pick(options_.transports, row[3]);
      one.micro_sequences = pick(options_.micro_sequences, row[4]);
      one.cpu.threads = pick(options_.threads, row[5]);
      one.schedule = pick(kSchedules, row[6]);
      one.recompute = pick(kRecompute, row[7]);
      TRAINYARD_TRY(cell(row[0], one));
    }
    return {};
  }

  Status run_interleaved() {
    if (interleaved_.empty()) return {};
    std::vector<int> sizes = {size(options_.computes), size(interleaved_), size(options_.threads)};
    const int isas = size(options_.isas);
    const int transports = size(options_.transports);
    if (options_.full) sizes.insert(sizes.end(), {isas, transports});
    int turn = 0;
    for (const std::vector<int>& row : options_.full ? product(sizes) : covering_array(sizes)) {
      Cell one = pick(interleaved_, row[1]);
      one.cpu.threads = pick(options_.threads, row[2]);
      turn += row[0] == 0 ? 1 : 2;  // so that no precision is bound to what takes turns
      one.cpu.isa = pick(options_.isas, options_.full ? row[3] : turn % isas);
      // Those take ten times as long.
      if (!options_.full && model_of(one) > 0 && one.cpu.isa == kernels::Isa::kGeneric)
        one.cpu.isa = options_.isas.back();
      one.transport = pick(options_.transports, options_.full ? row[4] : turn % transports);
      const std::vector<int64_t> micro_sequences = interleaved_micro_sequences(one);
      one.micro_sequences = pick(micro_sequences, turn % size(micro_sequences));
      one.recompute = pick(kRecompute, turn % size(kRecompute));
      // What one process does is what it is compared with.
      if (hash_of(row[0], one).empty())
        TRAINYARD_TRY(cell(row[0], {.cpu = {.isa = one.cpu.isa}}, model_of(one)));
      TRAINYARD_TRY(cell(row[0], one));
    }
    return {};
  }

  /// A layout's groups of ranks that share layers or sequences.
  struct Sharing {
    int tensor = 1;
    bool slices = false;
    int context = 1;
    bool ring = false;
  };
  static std::vector<Sharing> tensor_sharings(const std::vector<int>& tensors, bool slices) {
    std::vector<Sharing> sharings;
    sharings.reserve(tensors.size());
    for (const int tensor : tensors)
      sharings.push_back({.tensor = tensor, .slices = slices});
    return sharings;
  }
  static std::vector<Sharing> context_sharings(const std::vector<int>& contexts) {
    std::vector<Sharing> sharings;
    sharings.reserve(3 * contexts.size());
    for (const int context : contexts) {
      sharings.push_back({.context = context});
      sharings.push_back({.tensor = 2, .context = context});
      sharings.push_back({.tensor = 2, .slices = true, .context = context});
    }
    return sharings;
  }

  static std::vector<Sharing> ring_sharings(const std::vector<int>& contexts) {
    std::vector<Sharing> sharings;
    for (const int context : contexts) {
      sharings.push_back({.context = context});
      sharings.push_back({.context = context, .ring = true});
      sharings.push_back({.tensor = 2, .slices = context == 2, .context = context, .ring = true});
    }
    return sharings;
  }

  using MakeSpec = api::EngineSpec (*)(api::NumberFormat compute, api::ModelFamily family);

  /// In one place of a mesh, in two and, where there are ranks for it, in four.
  std::vector<Cell> shared_layouts(const std::vector<Sharing>& sharings,
                                   const api::ModelSpec& model) const {
    std::vector<Cell> layouts;
    for (const Sharing& sharing : sharings) {
      const int size = sharing.tensor * sharing.context;
      // A ring shares no heads out; others share whole key heads alone.
      const int64_t sharers = api::key_sharers(model, sharing.ring ? sharing.tensor : size);
      if (sharers == 0 || (sharers > 1 && sharing.context > 1)) continue;
      for (const int places : {1, 2, 4}) {
        if (size * places > *std::ranges::max_element(options_.ranks)) continue;
        for (const int pipeline : options_.pipelines) {
          for (Cell layout : layouts_of(places, options_.zero_stages, pipeline)) {
            // Without data ranks nothing is shared out at any stage.
            if (places == 1 && layout.zero_stage != options_.zero_stages.back()) continue;
            layout.ranks *= size;
            layout.tensor = sharing.tensor;
            layout.slices = sharing.slices;
            layout.context = sharing.context;
            layout.ring = sharing.ring;
            layouts.push_back(layout);
          }
        }
      }
    }
    return layouts;
  }

  /// Layouts with tensor or context ranks, once for each precision; what else there is takes turns.
  Status run_shared(const std::vector<Sharing>& sharings, MakeSpec spec_of,
                    std::vector<std::string>& hashes) {
    const std::vector<Cell> layouts =
        shared_layouts(sharings, spec_of(api::NumberFormat::kFP32, options_.family).model);
    if (layouts.empty()) return {};
    hashes.resize(options_.computes.size());
    int turn = 0;
    for (int precision = 0; precision < size(options_.computes); ++precision) {
      RankFacts first;
      std::string& hash = hashes[static_cast<size_t>(precision)];
      const auto shared_cell = [&](const Cell& one) {
        api::EngineSpec of_cell = spec_of(pick(options_.computes, precision), options_.family);
        of_cell.steps = options_.steps;
        return cell(std::move(of_cell), one, hash, first);
      };
      TRAINYARD_TRY(shared_cell({.cpu = {.isa = options_.isas.back()}}));
      for (Cell one : layouts) {
        ++turn;
        one.cpu.isa = pick(options_.isas, turn % size(options_.isas));
        // Those take ten times as long.
        if (!options_.full && one.ranks > one.tensor && one.cpu.isa == kernels::Isa::kGeneric)
          one.cpu.isa = options_.isas.back();
        one.cpu.threads = pick(options_.threads, turn / 2 % size(options_.threads));
        one.transport = pick(options_.transports, turn % size(options_.transports));
        one.micro_sequences = pick(options_.micro_sequences, turn % size(options_.micro_sequences));
        one.schedule = pick(kSchedules, turn % size(kSchedules));
        one.recompute = pick(kRecompute, turn % size(kRecompute));
        TRAINYARD_TRY(shared_cell(one));
      }
    }
    return {};
  }

  std::string& hash_of(int precision, const Cell& cell) {
    return result_.hashes[model_of(cell)][static_cast<size_t>(precision)];
  }

  Status cell(int precision, const Cell& one) { return cell(precision, one, model_of(one)); }

  Status cell(int precision, const Cell& cell, size_t model) {
    api::EngineSpec spec = prime_spec(pick(options_.computes, precision), options_.family);
    spec.steps = options_.steps;
    if (options_.cut) spec.numerics = cut_numerics();
    spec.model.layers = options_.layers[model];
    return this->cell(spec, cell, result_.hashes[model][static_cast<size_t>(precision)],
                      first_[model][static_cast<size_t>(precision)]);
  }

  /// The first cell of a run sets `hash` and `first`, those after it are compared with them.
  Status cell(api::EngineSpec spec, const Cell& cell, std::string& hash, RankFacts& first) {
    spec.model.sliding_window = options_.window;
    if (options_.isolate) spec.data.documents = api::Documents::kIsolate;
    const auto begin = std::chrono::steady_clock::now();
    std::vector<int32_t> stream = make_token_stream(4096, spec.model.vocab, 99);
    for (size_t i = 0; options_.isolate && i < stream.size(); ++i) {
      if (mix64(i) % 10 == 0) stream[i] = StreamBatches::kEndOfText;
    }
    TRAINYARD_ASSIGN(const std::vector<RankFacts> facts,
                     train_world(spec, cell, options_.steps, stream));
    Row row{.compute = spec.precision.compute,
            .cell = cell,
            .layers = spec.model.layers,
            .heads = spec.model.heads,
            .sequence_length = spec.data.sequence_length};
    row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    row.state_hash = facts[0].state_hash;
    if (hash.empty()) {
      hash = row.state_hash;
      first = facts[0];
    }
    for (const RankFacts& rank : facts)
      compare(rank, hash, first, row.faults);
    for (const RankFacts& rank : facts) {
      for (std::string& fault : formula_faults(spec, cell, rank, options_.steps))
        row.faults.push_back(std::move(fault));
    }
    if (!row.faults.empty()) ++result_.faulty;
    if (on_row_) on_row_(row);
    result_.rows.push_back(std::move(row));
    return {};
  }

  static void compare(const RankFacts& rank, const std::string& hash, RankFacts& first,
                      std::vector<std::string>& faults) {
    const std::string name = "rank " + std::to_string(rank.rank);
    if (rank.state_hash != hash) faults.push_back(name + ": state hash " + rank.state_hash);
    const auto differs = [&](const char* what) {
      faults.push_back(name + ": other " + what + " than rank 0 of the first cell");
    };
    for (size_t param = 0; param < first.weights_hashes.size(); ++param) {
      const std::string& found = rank.weights_hashes[param];
      std::string& wanted = first.weights_hashes[param];
      if (wanted.empty()) wanted = found;  // rank 0 of a pipeline has those of its stages
      if (!found.empty() && found != wanted) differs("weights");
    }
    if (rank.losses != first.losses) differs("losses");
    if (rank.gradient_norms != first.gradient_norms) differs("gradient norms");
  }

  MatrixOptions options_;
  const std::function<void(const Row&)>& on_row_;
  std::vector<Cell> layouts_;  // as layouts_of() gives them
  std::vector<Cell> interleaved_;
  std::vector<std::vector<RankFacts>> first_;  // by model and precision: rank 0 of the first cell
  MatrixResult result_;
};

}  // namespace

std::vector<int64_t> interleaved_micro_sequences(const Cell& cell) {
  const api::EngineSpec spec = prime_spec(api::NumberFormat::kFP32);
  api::BatchSpec batch = spec.batch;
  std::vector<int64_t> sizes;
  for (batch.micro_sequences = 1; batch.micro_sequences <= batch.global_sequences;
       ++batch.micro_sequences) {
    if (api::micro_batches_of(batch, cell.mesh().data_ranks()) % cell.pipeline == 0)
      sizes.push_back(batch.micro_sequences);
  }
  return sizes;
}

std::vector<Cell> layouts_of(int ranks, const std::vector<int>& zero_stages, int pipeline) {
  std::vector<Cell> layouts;
  if (ranks % pipeline != 0) return layouts;
  const int data = ranks / pipeline;
  const auto add = [&](int shard, int stage, api::ParallelMode mode) {
    layouts.push_back(
        {.ranks = ranks, .shard = shard, .zero_stage = stage, .mode = mode, .pipeline = pipeline});
  };
  for (const int stage : zero_stages) {
    // Data ranks that are alone share nothing out: one ZeRO stage stands for all.
    if (pipeline > 1 && data == 1 && stage != zero_stages.back()) continue;
    if (stage == 0) add(1, 0, api::ParallelMode::kDistributed);
    // One rank shares nothing out at any stage.
    for (int shard = data == 1 ? 1 : 2; stage > 0 && shard <= data; ++shard) {
      if (data % shard == 0) add(shard, stage, api::ParallelMode::kDistributed);
    }
    if (stage == 0 && data > 1) add(data, 0, api::ParallelMode::kDataParallel);
  }
  return layouts;
}

Result<MatrixResult> run_matrix(const MatrixOptions& options,
                                const std::function<void(const Row&)>& on_row) {
  return Matrix(options, on_row).run();
}

}  // namespace trainyard::matrix
