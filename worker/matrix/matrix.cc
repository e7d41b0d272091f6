#include "worker/matrix/matrix.h"

#include <array>
#include <chrono>
#include <utility>

#include "kernels/cpu/cpu_kernel_set.h"
#include "worker/matrix/covering.h"
#include "worker/matrix/formulas.h"

namespace trainyard::matrix {
namespace {

constexpr std::array kSchedules = {api::PipelineSchedule::kOneFOneB, api::PipelineSchedule::kGPipe,
                                   api::PipelineSchedule::kNaive,
                                   api::PipelineSchedule::kZeroBubbleH1};

class Matrix {
 public:
  Matrix(const MatrixOptions& options, const std::function<void(const Row&)>& on_row)
      : options_(options), on_row_(on_row) {
    if (options_.isas.empty()) options_.isas = kernels::available_isas();
    for (const int ranks : options_.ranks) {
      for (const int pipeline : options_.pipelines) {
        for (const Cell& layout : layouts_of(ranks, options_.zero_stages, pipeline))
          layouts_.push_back(layout);
      }
    }
    result_.hashes.resize(options_.computes.size());
    first_.resize(options_.computes.size());
  }

  Result<MatrixResult> run() {
    const auto size = [](const auto& values) { return static_cast<int>(values.size()); };
    const std::vector<int> sizes = {size(options_.computes),
                                    size(layouts_),
                                    size(options_.isas),
                                    size(options_.transports),
                                    size(options_.micro_sequences),
                                    size(options_.threads),
                                    size(kSchedules)};
    const auto pick = [](const auto& values, int index) {
      return values[static_cast<size_t>(index)];
    };
    for (const std::vector<int>& row : options_.full ? product(sizes) : covering_array(sizes)) {
      Cell one = pick(layouts_, row[1]);
      one.isa = pick(options_.isas, row[2]);
      one.transport = pick(options_.transports, row[3]);
      one.micro_sequences = pick(options_.micro_sequences, row[4]);
      one.threads = pick(options_.threads, row[5]);
      one.schedule = pick(kSchedules, row[6]);
      TRAINYARD_TRY(cell(static_cast<size_t>(row[0]), one));
    }
    return std::move(result_);
  }

 private:
  Status cell(size_t precision, const Cell& cell) {
    const auto begin = std::chrono::steady_clock::now();
    api::EngineSpec spec = prime_spec(options_.computes[precision]);
    spec.steps = options_.steps;
    const std::vector<int32_t> stream = make_token_stream(4096, spec.model.vocab, 99);
    TRAINYARD_ASSIGN(const std::vector<RankFacts> facts,
                     train_world(spec, cell, options_.steps, stream));
    Row row{.compute = spec.precision.compute, .cell = cell};
    row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    row.state_hash = facts[0].state_hash;
    std::string& hash = result_.hashes[precision];
    RankFacts& first = first_[precision];
    if (hash.empty()) {
      hash = row.state_hash;
      first = facts[0];
    }
    for (const RankFacts& rank : facts) {
      if (rank.state_hash != hash) {
        row.faults.push_back("rank " + std::to_string(rank.rank) + ": state hash " +
                             rank.state_hash);
      }
      const auto differs = [&](const char* what) {
        row.faults.push_back("rank " + std::to_string(rank.rank) + ": other " + what +
                             " than rank 0 of the first cell");
      };
      for (size_t param = 0; param < first.weights_hashes.size(); ++param) {
        const std::string& found = rank.weights_hashes[param];
        if (!found.empty() && found != first.weights_hashes[param]) differs("weights");
      }
      if (rank.losses != first.losses) differs("losses");
      if (rank.gradient_norms != first.gradient_norms) differs("gradient norms");
      for (std::string& fault : formula_faults(spec, cell, rank, options_.steps)) {
        row.faults.push_back(std::move(fault));
      }
    }
    if (!row.faults.empty()) ++result_.faulty;
    if (on_row_) on_row_(row);
    result_.rows.push_back(std::move(row));
    return {};
  }

  MatrixOptions options_;
  const std::function<void(const Row&)>& on_row_;
  std::vector<Cell> layouts_;     // as layouts_of() gives them
  std::vector<RankFacts> first_;  // by precision: rank 0 of the first cell
  MatrixResult result_;
};

}  // namespace

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
