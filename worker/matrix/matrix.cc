#include "worker/matrix/matrix.h"

#include <chrono>
#include <cstdlib>

#include "kernels/cpu/cpu_kernel_set.h"
#include "worker/comm/formulas.h"
#include "worker/optim/optimizer.h"

namespace trainyard::matrix {
namespace {

/// Elements of the matrices and vectors of a GPT-2 with padded vocabulary V, each of which begins
/// at a multiple of 64: embeddings, per block two norms, four linears with biases, and the last
/// norm. Written out here on purpose, apart from the model's own list.
struct Elements {
  int64_t matrices = 0;
  int64_t vectors = 0;
};
Elements elements_of(const api::ModelSpec& m) {
  const auto padded = [](int64_t count) { return (count + 63) / 64 * 64; };
  const int64_t h = m.hidden;
  const int64_t matrices = padded(3 * h * h) + padded(h * h) + 2 * padded(m.ffn * h);
  const int64_t vectors = 4 * padded(h) + padded(3 * h) + 2 * padded(h) + padded(m.ffn);
  return {.matrices = padded(engine::padded_vocab(m.vocab) * h) + padded(m.max_positions * h) +
                      m.layers * matrices,
          .vectors = m.layers * vectors + 2 * padded(h)};
}

void compare(const char* what, int64_t found, int64_t wanted, std::vector<std::string>& faults) {
  if (found == wanted) return;
  faults.push_back(std::string(what) + ": found " + std::to_string(found) + ", formula " +
                   std::to_string(wanted));
}

}  // namespace

Expected expected_of(const api::EngineSpec& spec, const Cell& cell, const RankFacts& rank,
                     int64_t steps) {
  const api::ModelSpec& m = spec.model;
  const int64_t T = spec.data.sequence_length;
  const int64_t samples =
      layout::even_share(spec.batch.global_sequences, cell.ranks, rank.rank).size();
  const int64_t rows = samples * T;
  const int64_t matrices = m.layers * (4 * m.hidden * m.hidden + 2 * m.hidden * m.ffn) +
                           engine::padded_vocab(m.vocab) * m.hidden;
  Expected expected;
  expected.gemm_flops = steps * 6 * rows * matrices;
  // 6 C T a token and layer, the causal count (llm.c): two products forward, four backward, each
  // 2 C T/2. Backward's second S is recomputation and not counted.
  expected.attention_flops = steps * 6 * rows * T * m.layers * m.hidden;
  const bool is_bf16 = spec.precision.compute == api::NumberFormat::kBF16;
  // Sums and weights of everything; moments of the own part, and masters where weights are bf16.
  const Elements elements = elements_of(m);
  expected.parameter_bytes = elements.matrices * (is_bf16 ? 10 : 12) + elements.vectors * 12;
  for (size_t unit = 0; unit < rank.counts.size(); ++unit) {
    const std::vector<int64_t>& counts = rank.counts[unit];
    const DType type = rank.unit_types[unit];
    expected.parameter_bytes +=
        counts[static_cast<size_t>(rank.rank)] * (type == DType::kFloat32 ? 8 : 12);
    expected.bytes_sent +=
        steps * (comm::reduce_scatter_bytes_sent(rank.rank, counts, DType::kInt64) +
                 comm::all_gather_bytes_sent(rank.rank, counts, type));
  }
  expected.bytes_sent +=
      steps * comm::all_reduce_bytes_sent(cell.ranks, rank.rank, sizeof(engine::ControlWord) / 8,
                                          DType::kInt64);
  return expected;
}

std::vector<std::string> formula_faults(const api::EngineSpec& spec, const Cell& cell,
                                        const RankFacts& rank, int64_t steps) {
  std::vector<std::string> faults;
  const Expected expected = expected_of(spec, cell, rank, steps);
  compare("GEMM FLOPs", rank.kernels.gemm_flops, expected.gemm_flops, faults);
  compare("attention FLOPs", rank.kernels.attention_flops, expected.attention_flops, faults);
  compare("parameter state bytes", rank.memory.parameters, expected.parameter_bytes, faults);
  compare("bytes sent", rank.comm.bytes_sent, expected.bytes_sent, faults);
  compare("bytes allocated", rank.allocated_bytes,
          rank.memory.parameters + rank.memory.activations + rank.memory.kernel_scratch, faults);
  // 1.02: what the arena's packing may waste over the most bytes alive at once.
  if (static_cast<double>(rank.memory.activations) >
      1.02 * static_cast<double>(rank.memory.activations_live_max)) {
    faults.push_back("activation arena: " + std::to_string(rank.memory.activations) +
                     " bytes for a live maximum of " +
                     std::to_string(rank.memory.activations_live_max));
  }
  for (std::string& fault : faults)
    fault = "rank " + std::to_string(rank.rank) + ": " + fault;
  return faults;
}

namespace {

class Matrix {
 public:
  Matrix(const MatrixOptions& options, const std::function<void(const Row&)>& on_row)
      : options_(options), on_row_(on_row) {
    if (options_.isas.empty()) options_.isas = kernels::available_isas();
  }

  Result<MatrixResult> run() {
    for (const api::NumberFormat compute : options_.computes) {
      spec_ = prime_spec(compute);
      spec_.steps = options_.steps;
      stream_ = make_token_stream(4096, spec_.model.vocab, 99);
      hash_.clear();
      for (const kernels::Isa isa : options_.isas)
        TRAINYARD_TRY(over_threads(isa));
      result_.hashes.push_back(hash_);
    }
    return std::move(result_);
  }

 private:
  Status over_threads(kernels::Isa isa) {
    for (const int threads : options_.threads) {
      for (const int ranks : options_.ranks) {
        for (const comm::TransportKind transport : options_.transports) {
          for (const int64_t micro : options_.micro_sequences) {
            TRAINYARD_TRY(cell({.ranks = ranks,
                                .transport = transport,
                                .threads = threads,
                                .isa = isa,
                                .micro_sequences = micro}));
          }
        }
      }
    }
    return {};
  }

  Status cell(const Cell& cell) {
    const auto begin = std::chrono::steady_clock::now();
    TRAINYARD_ASSIGN(const std::vector<RankFacts> facts,
                     train_world(spec_, cell, options_.steps, stream_));
    Row row{.compute = spec_.precision.compute, .cell = cell};
    row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    row.state_hash = facts[0].state_hash;
    row.final_loss = facts[0].losses.back();
    if (hash_.empty()) hash_ = row.state_hash;
    for (const RankFacts& rank : facts) {
      if (rank.state_hash != hash_) {
        row.faults.push_back("rank " + std::to_string(rank.rank) + ": state hash " +
                             rank.state_hash);
      }
      if (rank.weights_hash != facts[0].weights_hash) {
        row.faults.push_back("rank " + std::to_string(rank.rank) + ": other weights than rank 0");
      }
      if (rank.losses != facts[0].losses) row.faults.push_back("ranks report different losses");
      for (std::string& fault : formula_faults(spec_, cell, rank, options_.steps)) {
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
  api::EngineSpec spec_;
  std::vector<int32_t> stream_;
  std::string hash_;
  MatrixResult result_;
};

}  // namespace

Result<MatrixResult> run_matrix(const MatrixOptions& options,
                                const std::function<void(const Row&)>& on_row) {
  return Matrix(options, on_row).run();
}

}  // namespace trainyard::matrix
