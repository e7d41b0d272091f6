#include "worker/matrix/formulas.h"

#include <algorithm>

#include "worker/comm/formulas.h"
#include "worker/engine/optimizer.h"

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

/// One rank of a cell.
class Formulas {
 public:
  Formulas(const api::EngineSpec& spec, const Cell& cell, const RankFacts& rank)
      : spec_(spec), cell_(cell), rank_(rank), mesh_(cell.mesh()) {
    own_ = rank.rank % mesh_.fsdp;
    partition_ = {.samples = spec.batch.global_sequences,
                  .micro_samples = cell.micro_sequences,
                  .ranks = mesh_.data_ranks()};
    rounds_ = partition_.micro_batches_max();
    cuts_sums_ = mesh_.fsdp > 1 && cell.zero_stage >= 2;
    cuts_weights_ = mesh_.fsdp > 1 && cell.zero_stage >= 3;
  }

  Expected expected(int64_t steps) const {
    Expected all;
    flops(steps, all);
    states(all);
    if (cuts_sums_) all.lent_sums = lent_sums();
    if (cuts_weights_) all.lent_weights = lent_weights();
    all.bytes_sent = bytes_sent(steps);
    return all;
  }

 private:
  int units() const { return static_cast<int>(rank_.units.size()); }
  const UnitFacts& unit(int unit) const { return rank_.units[static_cast<size_t>(unit)]; }
  int64_t layers() const { return spec_.model.layers + 2; }  // embeddings and classifier
  const std::vector<int>& layers_of(int unit) const { return this->unit(unit).layers; }
  int first_layer(int unit) const { return layers_of(unit).front(); }
  int last_layer(int unit) const { return layers_of(unit).back(); }
  bool uses(int unit, int64_t layer) const {
    return std::find(layers_of(unit).begin(), layers_of(unit).end(), layer) !=
           layers_of(unit).end();
  }
  DType type(int unit) const { return this->unit(unit).dtype; }
  int64_t whole(int unit) const { return this->unit(unit).elements; }
  /// The elements of each rank that shares a unit: ceil(n / P) of its n blocks of 64, the last
  /// ranks what is left of them; with `mode: DataParallel` the first has all. Reckoned here on
  /// purpose, apart from layout::Layout.
  std::vector<int64_t> shares(int unit) const {
    const int64_t blocks = (whole(unit) + 63) / 64;
    const bool one_has_all = cell_.mode == api::ParallelMode::kDataParallel;
    const int64_t most = one_has_all ? blocks : (blocks + mesh_.fsdp - 1) / mesh_.fsdp;
    std::vector<int64_t> shares;
    for (int64_t rank = 0; rank < mesh_.fsdp; ++rank)
      shares.push_back(64 * std::clamp<int64_t>(blocks - rank * most, 0, most));
    return shares;
  }
  int64_t own(int unit) const { return shares(unit)[static_cast<size_t>(own_)]; }

  void flops(int64_t steps, Expected& all) const {
    const api::ModelSpec& m = spec_.model;
    const int64_t T = spec_.data.sequence_length;
    const int64_t rows =
        partition_.share(layout::data_rank(mesh_, layout::coordinate_of(mesh_, rank_.rank)))
            .size() *
        T;
    const int64_t matrices = m.layers * (4 * m.hidden * m.hidden + 2 * m.hidden * m.ffn) +
                             engine::padded_vocab(m.vocab) * m.hidden;
    all.gemm_flops = steps * 6 * rows * matrices;
    // 6 C T a token and layer, the causal count (llm.c): two products forward, four backward, each
    // 2 C T/2. Backward's second S is recomputation and not counted.
    all.attention_flops = steps * 6 * rows * T * m.layers * m.hidden;
  }

  void states(Expected& all) const {
    const int64_t matrix_bytes = spec_.precision.compute == api::NumberFormat::kBF16 ? 2 : 4;
    const Elements elements = elements_of(spec_.model);
    all.unit_bytes = matrix_bytes * elements.matrices + 4 * elements.vectors;
    if (!cuts_sums_) all.sums = 8 * (elements.matrices + elements.vectors);
    if (!cuts_weights_) all.weights = all.unit_bytes;
    for (int unit = 0; unit < units(); ++unit) {
      all.moments += 8 * own(unit);
      if (cuts_sums_) all.sums += 8 * own(unit);
      if (cuts_weights_) all.weights += size_of(type(unit)) * own(unit);
      if (type(unit) == DType::kBFloat16) all.weights += 4 * own(unit);  // masters
    }
  }

  /// Two layers that follow one another in a pass.
  int64_t lent_weights() const {
    int64_t most = 0;
    for (int64_t layer = 0; layer + 1 < layers(); ++layer) {
      int64_t held = 0;
      for (int unit = 0; unit < units(); ++unit) {
        if (uses(unit, layer) || uses(unit, layer + 1)) held += size_of(type(unit)) * whole(unit);
      }
      most = std::max(most, held);
    }
    return most;
  }

  /// While a layer adds: units that it or a layer above has begun and that are not complete, and
  /// those that were completed last, whose reduction runs beside it.
  int64_t lent_sums() const {
    int64_t most = 0;
    for (int64_t layer = layers() - 1; layer >= 0; --layer) {
      int64_t completed = layers();  // the last layer before that completed units
      for (int unit = 0; unit < units(); ++unit) {
        if (first_layer(unit) > layer) completed = std::min<int64_t>(completed, first_layer(unit));
      }
      int64_t held = 0;
      for (int unit = 0; unit < units(); ++unit) {
        const bool adds = first_layer(unit) <= layer && layer <= last_layer(unit);
        if (adds || first_layer(unit) == completed) held += 8 * whole(unit);
      }
      most = std::max(most, held);
    }
    return most;
  }

  /// How often a step gathers a unit where weights are cut: once for a run of layers with at most
  /// one other between them, forward and back, in each round of micro-batches; so runs that meet
  /// about the last layer, or about the first one of the next round, are one.
  int64_t gathers(int unit) const {
    const std::vector<int>& layers_of_unit = layers_of(unit);
    int64_t runs = 1;
    for (size_t i = 1; i < layers_of_unit.size(); ++i) {
      if (layers_of_unit[i] > layers_of_unit[i - 1] + 2) ++runs;
    }
    const int64_t at_turn = last_layer(unit) >= layers() - 2 ? 1 : 0;
    const int64_t at_start = first_layer(unit) <= 1 ? 1 : 0;
    return rounds_ * (2 * runs - at_turn) - at_start * (rounds_ - 1);
  }

  int64_t bytes_sent(int64_t steps) const {
    int64_t by_step = comm::all_reduce_bytes_sent(cell_.ranks, rank_.rank,
                                                  sizeof(engine::ControlWord) / 8, DType::kInt64);
    int64_t at_start = 0;  // the initial weights
    for (int unit = 0; unit < units(); ++unit) {
      const std::vector<int64_t> parts = shares(unit);
      if (mesh_.fsdp > 1) {
        const int64_t gather = comm::all_gather_bytes_sent(own_, parts, type(unit));
        by_step += (cuts_sums_ ? rounds_ : 1) *
                   comm::reduce_scatter_bytes_sent(own_, parts, DType::kInt64);
        by_step += (cuts_weights_ ? gathers(unit) : 1) * gather;
        if (!cuts_weights_) at_start += gather;
      }
      if (mesh_.dp > 1) {
        by_step += comm::all_reduce_bytes_sent(mesh_.dp, rank_.rank / mesh_.fsdp, own(unit),
                                               DType::kInt64);
      }
    }
    return at_start + steps * by_step;
  }

  const api::EngineSpec& spec_;
  const Cell& cell_;
  const RankFacts& rank_;
  const layout::Mesh mesh_;
  data::BatchPartition partition_;
  int own_ = 0;
  int64_t rounds_ = 1;
  bool cuts_sums_ = false;
  bool cuts_weights_ = false;
};

void compare(const char* what, int64_t found, int64_t wanted, std::vector<std::string>& faults) {
  if (found == wanted) return;
  faults.push_back(std::string(what) + ": found " + std::to_string(found) + ", formula " +
                   std::to_string(wanted));
}

/// `waste`: what packing may add to the most bytes alive at once.
void compare_packed(const char* what, int64_t found, int64_t alive, double waste,
                    std::vector<std::string>& faults) {
  const double most = (1 + waste) * static_cast<double>(alive);
  if (found >= alive && static_cast<double>(found) <= most) return;
  faults.push_back(std::string(what) + ": " + std::to_string(found) +
                   " bytes for a live maximum of " + std::to_string(alive));
}

}  // namespace

Expected expected_of(const api::EngineSpec& spec, const Cell& cell, const RankFacts& rank,
                     int64_t steps) {
  return Formulas(spec, cell, rank).expected(steps);
}

std::vector<std::string> formula_faults(const api::EngineSpec& spec, const Cell& cell,
                                        const RankFacts& rank, int64_t steps) {
  std::vector<std::string> faults;
  const Expected expected = expected_of(spec, cell, rank, steps);
  const engine::MemoryReport& memory = rank.memory;
  compare("GEMM FLOPs", rank.kernels.gemm_flops, expected.gemm_flops, faults);
  compare("attention FLOPs", rank.kernels.attention_flops, expected.attention_flops, faults);
  int64_t unit_bytes = 0;
  for (const UnitFacts& unit : rank.units)
    unit_bytes += unit.elements * size_of(unit.dtype);
  compare("bytes of all units", unit_bytes, expected.unit_bytes, faults);
  compare("bytes of weights", memory.weights, expected.weights, faults);
  compare("bytes of moments", memory.moments, expected.moments, faults);
  compare("bytes of gradient sums", memory.sums, expected.sums, faults);
  compare_packed("sums of a micro-batch", memory.lent_sums, expected.lent_sums, 0.05, faults);
  compare_packed("gathered weights", memory.lent_weights, expected.lent_weights, 0.05, faults);
  compare_packed("activation arena", memory.activations, memory.activations_live_max, 0.02, faults);
  compare("bytes sent", rank.comm.bytes_sent, expected.bytes_sent, faults);
  compare("bytes allocated", rank.allocated_bytes,
          memory.parameters + memory.lent_sums + memory.lent_weights + memory.activations +
              memory.kernel_scratch,
          faults);
  for (std::string& fault : faults)
    fault = "rank " + std::to_string(rank.rank) + ": " + fault;
  return faults;
}

}  // namespace trainyard::matrix
