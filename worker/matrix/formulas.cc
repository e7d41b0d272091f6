#include "worker/matrix/formulas.h"

#include <algorithm>

#include "worker/comm/formulas.h"
#include "worker/engine/optimizer.h"

namespace trainyard::matrix {
namespace {

/// Elements of the matrices and vectors that some layers of a GPT-2 with padded vocabulary V read,
/// each of which begins at a multiple of 64: embeddings, per block two norms, four linears with
/// biases, and the last norm with the tied table. Written out here on purpose, apart from the
/// model's own list.
struct Elements {
  int64_t matrices = 0;
  int64_t vectors = 0;
};
Elements elements_of(const api::ModelSpec& m, layout::Range layers) {
  const auto padded = [](int64_t count) { return (count + 63) / 64 * 64; };
  const int64_t h = m.hidden;
  Elements all;
  const bool embeds = layers.begin == 0;
  const bool has_head = layers.end == m.layers + 2;
  if (embeds || has_head) all.matrices += padded(engine::padded_vocab(m.vocab) * h);
  if (embeds) all.matrices += padded(m.max_positions * h);
  if (has_head) all.vectors += 2 * padded(h);
  const int64_t blocks = layers.size() - (embeds ? 1 : 0) - (has_head ? 1 : 0);
  all.matrices += blocks * (padded(3 * h * h) + padded(h * h) + 2 * padded(m.ffn * h));
  all.vectors += blocks * (4 * padded(h) + padded(3 * h) + 2 * padded(h) + padded(m.ffn));
  return all;
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
    all.activations_kept = activations_kept();
    all.bytes_sent = bytes_sent(steps);
    for (int64_t stage = 0; stage < chunks(); ++stage)
      all.in_flight.push_back(in_flight(stage));
    return all;
  }

 private:
  int units() const { return static_cast<int>(rank_.units.size()); }
  const UnitFacts& unit(int unit) const { return rank_.units[static_cast<size_t>(unit)]; }
  int pp() const { return rank_.rank / mesh_.data_ranks(); }
  int dp() const { return rank_.rank / mesh_.fsdp % mesh_.dp; }
  int64_t rows() const {
    return partition_.share(rank_.rank % mesh_.data_ranks()).size() * spec_.data.sequence_length;
  }
  /// The unit of the table that embeds and classifies: alone in it.
  int tied_unit() const {
    const int64_t h = spec_.model.hidden;
    const int64_t table = (engine::padded_vocab(spec_.model.vocab) * h + 63) / 64 * 64;
    for (int unit = 0; unit < units(); ++unit) {
      if (whole(unit) == table && (uses(unit, 0) || uses(unit, layers() - 1))) return unit;
    }
    return -1;
  }
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
    int64_t blocks = 0;
    for (const layout::Range& stage : rank_.stages)
      blocks += stage.size() - (stage.begin == 0 ? 1 : 0) - (stage.end == layers() ? 1 : 0);
    const bool has_head = rank_.stages.back().end == layers();
    const int64_t matrices = blocks * (4 * m.hidden * m.hidden + 2 * m.hidden * m.ffn) +
                             (has_head ? engine::padded_vocab(m.vocab) * m.hidden : 0);
    all.gemm_flops = steps * 6 * rows() * matrices;
    // 6 C T a token and layer, the causal count (llm.c): two products forward, four backward, each
    // 2 C T/2. Backward's second S is recomputation and not counted.
    all.attention_flops = steps * 6 * rows() * spec_.data.sequence_length * blocks * m.hidden;
    if (cell_.recompute != api::Recompute::kFull) return;
    // A block's forward but for the product that ends it; the cheap ops have no product.
    all.recomputed_gemm_flops =
        steps * 2 * rows() * blocks * (4 * m.hidden * m.hidden + m.hidden * m.ffn);
    all.recomputed_attention_flops = all.attention_flops / 3;
  }

  void states(Expected& all) const {
    const int64_t matrix_bytes = spec_.precision.compute == api::NumberFormat::kBF16 ? 2 : 4;
    Elements elements;
    for (const layout::Range& stage : rank_.stages) {
      const Elements of_stage = elements_of(spec_.model, stage);
      elements.matrices += of_stage.matrices;
      elements.vectors += of_stage.vectors;
    }
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

  /// The most micro-batches of one of this rank's stages between their F and their last pass.
  int64_t in_flight(int64_t stage) const {
    if (mesh_.pp == 1 || cell_.schedule == api::PipelineSchedule::kNaive) return 1;
    if (cell_.schedule == api::PipelineSchedule::kGPipe) return rounds_;
    if (cell_.schedule == api::PipelineSchedule::kZeroBubbleH1)
      return std::min<int64_t>(rounds_, mesh_.pp);
    if (cell_.schedule == api::PipelineSchedule::kOneFOneB)
      return std::min<int64_t>(rounds_, mesh_.pp - pp());
    // Of the first n passes in a direction those of the stage that is the `turn`-th in it.
    const int64_t of_all = mesh_.pp * chunks();
    const auto passed = [&](int64_t n, int64_t turn) {
      return n / of_all * mesh_.pp + std::clamp<int64_t>(n % of_all - turn * mesh_.pp, 0, mesh_.pp);
    };
    int64_t most = 0;
    for (int64_t n = 0; n < rounds_ * chunks(); ++n) {
      const int64_t forward = std::min(rounds_ * chunks(), n + passes_ahead() + 1);
      most = std::max(most, passed(forward, stage) - passed(n, chunks() - 1 - stage));
    }
    return most;
  }

  /// One pass forward or back, of which of this rank's stages.
  struct Turn {
    bool back = false;
    size_t stage = 0;
  };

  /// Its passes in order, those of gradients of weights alone left out. Of the rank that has most
  /// micro-batches.
  std::vector<Turn> turns() const {
    std::vector<Turn> all;
    const int64_t passes = rounds_ * chunks();
    const int64_t ahead = passes_ahead();
    // p micro-batches of a stage, then of the next one.
    const auto stage = [&](int64_t n) { return n / mesh_.pp % chunks(); };
    for (int64_t n = 0; n < passes + ahead; ++n) {
      if (n < passes) all.push_back({.stage = static_cast<size_t>(stage(n))});
      if (n >= ahead)
        all.push_back(
            {.back = true, .stage = static_cast<size_t>(chunks() - 1 - stage(n - ahead))});
    }
    return all;
  }

  int64_t chunks() const { return cell_.chunks; }

  /// Passes that go forward before the first goes back with another.
  int64_t passes_ahead() const {
    if (mesh_.pp == 1) return 0;
    switch (cell_.schedule) {
      case api::PipelineSchedule::kNaive:
        return 0;
      case api::PipelineSchedule::kGPipe:
        return rounds_;
      case api::PipelineSchedule::kInterleaved:
        return std::min<int64_t>(rounds_ * chunks(),
                                 2 * (mesh_.pp - 1 - pp()) + (chunks() - 1) * mesh_.pp);
      default:
        return std::min<int64_t>(rounds_, mesh_.pp - 1 - pp());
    }
  }

  /// Of buffers of `columns` values of `bytes` each per row of the largest micro-batch, all that
  /// are named.
  int64_t buffers(int64_t bytes, std::initializer_list<int64_t> columns) const {
    const int64_t rows = partition_.micro_batch(rank_.rank % mesh_.data_ranks(), 0).size() *
                         spec_.data.sequence_length;
    int64_t all = 0;
    for (const int64_t each : columns)
      all += (rows * each * bytes + 63) / 64 * 64;
    return all;
  }

  /// What micro-batches in flight keep from F on, and those that W is owed to from B on.
  int64_t activations_kept() const {
    int64_t all = 0;
    for (int64_t stage = 0; stage < chunks(); ++stage)
      all += kept_of(stage);
    return all;
  }

  int64_t kept_of(int64_t stage) const {
    const api::ModelSpec& m = spec_.model;
    const layout::Range& layers_of_stage = rank_.stages[static_cast<size_t>(stage)];
    const int64_t h = m.hidden;
    const int64_t compute = spec_.precision.compute == api::NumberFormat::kBF16 ? 2 : 4;
    const bool has_head = layers_of_stage.end == layers();
    const int64_t blocks =
        layers_of_stage.size() - (layers_of_stage.begin == 0 ? 1 : 0) - (has_head ? 1 : 0);
    const int64_t input = buffers(4, {h});
    // What the cheap ops leave: two normed values and the activated ones, and the norms'
    // statistics.
    const int64_t cheap = buffers(compute, {h, h, m.ffn}) + buffers(4, {1, 1, 1, 1});
    // The rest: q, k and v, the heads, what goes into the activation; the middle of the residual
    // stream; the attention's statistics.
    const int64_t dear = buffers(compute, {3 * h, h, m.ffn}) + buffers(4, {h, m.heads});
    const bool full = cell_.recompute == api::Recompute::kFull;
    const bool again = cell_.recompute != api::Recompute::kNone;
    const int64_t in_block = input + (full ? 0 : dear) + (again ? 0 : cheap);
    const int64_t kept = blocks * in_block + (has_head ? input : 0);
    if (!weights_apart()) return in_flight(stage) * kept;
    // Gradients of what the norms and the products leave.
    int64_t owed = buffers(4, {h, h}) + buffers(compute, {3 * h, h, m.ffn, h});
    if (again) owed += cheap;
    if (full) owed += buffers(compute, {h}) + buffers(4, {h});  // heads and middle
    owed *= blocks;
    if (has_head) {
      owed += buffers(compute, {h, engine::padded_vocab(m.vocab)}) + buffers(4, {h, 1, 1});
    }
    return in_flight(stage) * kept + std::min<int64_t>(rounds_, pp() + 1) * owed;
  }

  /// The last W of a micro-batch does not follow its B: of a single one it does.
  bool weights_apart() const {
    return pp() > 0 && rounds_ > 1 && cell_.schedule == api::PipelineSchedule::kZeroBubbleH1;
  }

  /// The layers that a step visits one after the other, those that follow one another in the same
  /// layer as one: whose weights it needs in turn. Gradients of weights need none.
  std::vector<int64_t> visits() const {
    std::vector<int64_t> all;
    const auto visit = [&](int64_t layer) {
      if (all.empty() || all.back() != layer) all.push_back(layer);
    };
    const auto backward = [&](size_t stage) {
      for (int64_t layer = rank_.stages[stage].end - 1; layer >= rank_.stages[stage].begin; --layer)
        visit(layer);
    };
    for (const Turn& turn : turns()) {
      if (turn.back) {
        backward(turn.stage);
        continue;
      }
      const layout::Range& stage = rank_.stages[turn.stage];
      // The head's is part of backward.
      for (int64_t layer = stage.begin; layer < std::min(stage.end, layers() - 1); ++layer)
        visit(layer);
    }
    return all;
  }

  /// Two layers that follow one another.
  int64_t lent_weights() const {
    const std::vector<int64_t> all = visits();
    int64_t most = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      int64_t held = 0;
      for (int unit = 0; unit < units(); ++unit) {
        const bool next = i + 1 < all.size() && uses(unit, all[i + 1]);
        if (uses(unit, all[i]) || next) held += size_of(type(unit)) * whole(unit);
      }
      most = std::max(most, held);
    }
    return most;
  }

  /// While a layer adds: units that it or a layer above has begun and that are not complete, and
  /// those that were completed last, whose reduction runs beside it, if it does not add to them.
  int64_t lent_sums() const {
    int64_t most = 0;
    int64_t completed = -1;  // the last layer before that completed units
    for (const Turn& turn : turns()) {
      const layout::Range& stage = rank_.stages[turn.stage];
      for (int64_t layer = stage.end - 1; turn.back && layer >= stage.begin; --layer) {
        const auto is_pending = [&](int unit) { return first_layer(unit) == completed; };
        bool finishes = false;
        for (int unit = 0; unit < units(); ++unit)
          finishes = finishes || (is_pending(unit) && uses(unit, layer));
        int64_t held = 0;
        bool completes = false;
        for (int unit = 0; unit < units(); ++unit) {
          const bool adds = first_layer(unit) <= layer && layer <= last_layer(unit);
          if (adds || (is_pending(unit) && !finishes)) held += 8 * whole(unit);
          completes = completes || first_layer(unit) == layer;
        }
        most = std::max(most, held);
        if (completes) completed = layer;
      }
    }
    return most;
  }

  /// How often a step gathers a unit where weights are cut: once for a run of visits with at most
  /// one other between them.
  int64_t gathers(int unit) const {
    const std::vector<int64_t> all = visits();
    int64_t count = 0;
    size_t last = all.size();
    for (size_t i = 0; i < all.size(); ++i) {
      if (!uses(unit, all[i])) continue;
      if (last == all.size() || i > last + 2) ++count;
      last = i;
    }
    return count;
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
      // A table that two stages share has copies on both.
      const bool tied = mesh_.pp > 1 && unit == tied_unit();
      const int copies = tied ? 2 * mesh_.dp : mesh_.dp;
      const int index = (tied && pp() > 0 ? mesh_.dp : 0) + dp();
      if (copies > 1)
        by_step += comm::all_reduce_bytes_sent(copies, index, own(unit), DType::kInt64);
    }
    // Activations to the stage after, gradients to the one before.
    int messages = 0;
    for (const layout::Range& stage : rank_.stages)
      messages += (stage.begin > 0 ? 1 : 0) + (stage.end < layers() ? 1 : 0);
    by_step += messages * rows() * spec_.model.hidden * 4;
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
  const kernels::KernelCounters& again = rank.recomputed;
  compare("GEMM FLOPs", rank.kernels.gemm_flops - again.gemm_flops, expected.gemm_flops, faults);
  compare("attention FLOPs", rank.kernels.attention_flops - again.attention_flops,
          expected.attention_flops, faults);
  compare("GEMM FLOPs computed again", again.gemm_flops, expected.recomputed_gemm_flops, faults);
  compare("attention FLOPs computed again", again.attention_flops,
          expected.recomputed_attention_flops, faults);
  int64_t unit_bytes = 0;
  for (const UnitFacts& unit : rank.units)
    unit_bytes += unit.elements * size_of(unit.dtype);
  compare("bytes of all units", unit_bytes, expected.unit_bytes, faults);
  compare("bytes of weights", memory.weights, expected.weights, faults);
  compare("bytes of moments", memory.moments, expected.moments, faults);
  compare("bytes of gradient sums", memory.sums, expected.sums, faults);
  // A unit's sums have one place in all of a step: where three stages of a rank follow each other
  // in turn, they take three though two are in use at a time. More layers are lent in more orders,
  // too.
  const double waste = cell.chunks > 1 || spec.model.layers > 2 ? 0.25 : 0.05;
  compare_packed("sums of a micro-batch", memory.lent_sums, expected.lent_sums, waste, faults);
  compare_packed("gathered weights", memory.lent_weights, expected.lent_weights, waste, faults);
  compare_packed("activation arena", memory.activations, memory.activations_live_max, 0.02, faults);
  for (size_t stage = 0; stage < expected.in_flight.size(); ++stage) {
    compare("micro-batches in flight", memory.in_flight[stage], expected.in_flight[stage], faults);
  }
  compare("activations kept beyond a pass", memory.activations_kept, expected.activations_kept,
          faults);
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
