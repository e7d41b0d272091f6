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
  int64_t layers = 0;  ///< of the model
  std::string state_hash;
  double seconds = 0;
  std::vector<std::string> faults;  ///< empty: equal hash and every formula met
};

struct MatrixOptions {
  std::vector<int> ranks = {1, 2, 3, 4, 5, 6};
  std::vector<int> zero_stages = {0, 1, 2, 3};
  std::vector<int> pipelines = {1, 2, 3, 4};  ///< stages; of them those that divide the ranks
  /// Stages of each rank: more than one under Interleaved, with micro-batches that it takes.
  std::vector<int> chunks = {1, 2, 3};
  /// Transformer blocks of the models, ascending. A cell trains the first that has a layer for each
  /// of its stages, embedding and head included; where none has, there is no such cell.
  std::vector<int64_t> layers = {2, 10};
  std::vector<comm::TransportKind> transports = {
      comm::TransportKind::kLocal, comm::TransportKind::kShm, comm::TransportKind::kTcp};
  std::vector<int64_t> micro_sequences = {1, 4, 11};
  std::vector<int> threads = {1, 2};
  std::vector<kernels::Isa> isas;  ///< empty: all that this machine has
  std::vector<api::NumberFormat> computes = {api::NumberFormat::kFP32, api::NumberFormat::kBF16};
  /// Every cell of the product; otherwise every pair of values of two axes, where a way of dividing
  /// the states over a number of ranks is one value. Interleaved cells come once for each precision
  /// and number of threads; what else there is takes turns.
  bool full = false;
  int64_t steps = 5;
};

struct MatrixResult {
  std::vector<Row> rows;
  /// By entry of MatrixOptions::layers and computes; empty where no cell trains that.
  std::vector<std::vector<std::string>> hashes;
  int faulty = 0;
};

/// The sizes of micro-batches, at most the batch's, of which Interleaved takes as many as there
/// are.
std::vector<int64_t> interleaved_micro_sequences(const Cell& cell);

/// The ways of dividing a model over `ranks` ranks in `pipeline` stages: dp x shard with each ZeRO
/// stage, stage 0 without shards, and `mode: DataParallel`.
std::vector<Cell> layouts_of(int ranks, const std::vector<int>& zero_stages, int pipeline = 1);

/// Trains the same small run (prime sizes, dropout 0.1, active clipping, weight decay, tied
/// embeddings) in many cells and compares final states, the weights that ops read, and every step's
/// losses and gradient norms bit for bit; every rank's FLOPs, bytes held by purpose and bytes sent
/// are held against closed formulas. Ranks are threads of this process over every transport.
/// `on_row` is called after each. Errors: a run that failed.
Result<MatrixResult> run_matrix(const MatrixOptions& options,
                                const std::function<void(const Row&)>& on_row);

}  // namespace trainyard::matrix
