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
  int64_t layers = 0;           ///< of the model
  int64_t heads = 0;            ///< of the model: equal hashes are asked for among those of one
  int64_t sequence_length = 0;  ///< and of one of these
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
  api::ModelFamily family = api::ModelFamily::kGPT2;  ///< Llama's head has a table of its own
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
  /// Numbers of ranks that share every layer of tensor_spec(), by themselves and in two places of a
  /// mesh, of at most as many ranks in all as `ranks` names.
  std::vector<int> tensors = {};
  /// The same of sliced_spec(), with slices of sequences.
  std::vector<int> slices = {};
  /// Numbers of ranks that share every sequence of context_spec(), in the same places, by
  /// themselves and of 2 tensor ranks each, with slices and without.
  std::vector<int> contexts = {};
  /// The same of ring_spec() in rings; and, exchanging heads, those by themselves.
  std::vector<int> rings = {};
  int64_t steps = 5;
  bool cut = false;      ///< cut_numerics() in place of the defaults
  int64_t window = 0;    ///< of attention, of a family that has one
  bool isolate = false;  ///< documents, which then are some ten tokens long
};

struct MatrixResult {
  std::vector<Row> rows;
  /// By entry of MatrixOptions::layers and computes; empty where no cell trains that.
  std::vector<std::vector<std::string>> hashes;
  std::vector<std::string> tensor_hashes;   ///< by entry of computes, of tensor_spec()
  std::vector<std::string> sliced_hashes;   ///< the same of sliced_spec()
  std::vector<std::string> context_hashes;  ///< the same of context_spec()
  std::vector<std::string> ring_hashes;     ///< the same of ring_spec()
  int faulty = 0;
};

/// The sizes of micro-batches, at most the batch's, of which Interleaved takes as many as there
/// are.
std::vector<int64_t> interleaved_micro_sequences(const Cell& cell);

/// The ways of dividing a model over `ranks` ranks in `pipeline` stages: dp x shard with each ZeRO
/// stage, stage 0 without shards, and `mode: DataParallel`.
std::vector<Cell> layouts_of(int ranks, const std::vector<int>& zero_stages, int pipeline = 1);

/// Trains the same small run (prime sizes, dropout 0.1, active clipping, weight decay) in many
/// cells and compares final states, the weights that ops read, and every step's losses and gradient
/// norms bit for bit; every rank's FLOPs, bytes held by purpose and bytes sent are held against
/// closed formulas. Ranks are threads of this process over every transport. `on_row` is called
/// after each. Errors: a run that failed.
Result<MatrixResult> run_matrix(const MatrixOptions& options,
                                const std::function<void(const Row&)>& on_row);

}  // namespace trainyard::matrix
