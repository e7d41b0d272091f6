#pragma once

#include <functional>
#include <string>
#include <vector>

#include "worker/matrix/world.h"

namespace trainyard::matrix {

/// One row of the table: a cell, the hash it ended with and what was held against formulas.
struct Row {
  api::NumberFormat compute = api::NumberFormat::kFP32;
  Cell cell;
  std::string state_hash;
  double final_loss = 0;
  double seconds = 0;
  std::vector<std::string> faults;  ///< empty: equal hash and every formula met
};

struct MatrixOptions {
  std::vector<int> ranks = {1, 2, 3, 4, 5};
  std::vector<comm::TransportKind> transports = {
      comm::TransportKind::kLocal, comm::TransportKind::kShm, comm::TransportKind::kTcp};
  std::vector<int64_t> micro_sequences = {1, 4, 11};
  std::vector<int> threads = {1, 2};
  std::vector<kernels::Isa> isas;  ///< empty: all that this machine has
  std::vector<api::NumberFormat> computes = {api::NumberFormat::kFP32, api::NumberFormat::kBF16};
  int64_t steps = 5;
};

struct MatrixResult {
  std::vector<Row> rows;
  std::vector<std::string> hashes;  ///< one per entry of MatrixOptions::computes
  int faulty = 0;
};

/// Trains the same small run (prime sizes, dropout 0.1, active clipping, weight decay) in every
/// cell of the product and compares final states bit for bit; every rank's FLOPs, bytes held and
/// bytes sent are held against closed formulas. `on_row` is called after each. Errors: a run that
/// failed.
Result<MatrixResult> run_matrix(const MatrixOptions& options,
                                const std::function<void(const Row&)>& on_row);

/// What one rank must have done, by closed formula from the model's sizes.
struct Expected {
  int64_t gemm_flops = 0;
  int64_t attention_flops = 0;
  int64_t parameter_bytes = 0;
  int64_t bytes_sent = 0;
};
Expected expected_of(const api::EngineSpec& spec, const Cell& cell, const RankFacts& rank,
                     int64_t steps);

/// Differences between what a rank did and what the formulas say, one line each.
std::vector<std::string> formula_faults(const api::EngineSpec& spec, const Cell& cell,
                                        const RankFacts& rank, int64_t steps);

}  // namespace trainyard::matrix
