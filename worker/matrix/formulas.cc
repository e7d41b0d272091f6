#include "worker/matrix/formulas.h"

#include <algorithm>

#include "worker/comm/formulas.h"
#include "worker/engine/optimizer.h"
#include "worker/matrix/architecture.h"

namespace trainyard::matrix {
namespace {

/// One rank of a cell.
class Formulas {
 public:
  Formulas(const api::EngineSpec& spec, const Cell& cell, const RankFacts& rank)
      : spec_(spec),
        model_(spec.model, cell.tensor, rank.rank % cell.tensor),
        cell_(cell),
        rank_(rank),
        mesh_(cell.mesh()) {
    own_ = place() % mesh_.fsdp;
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
  /// Tensor ranks are neighbours, and so are context ranks: what they share out is one place.
  int place() const { return rank_.rank / mesh_.tp / mesh_.cp; }
  int cp() const { return rank_.rank / mesh_.tp % mesh_.cp; }
  int tp() const { return rank_.rank % mesh_.tp; }
  int pp() const { return place() / mesh_.data_ranks(); }
  int dp() const { return place() / mesh_.fsdp % mesh_.dp; }
  /// Of all positions of the samples, and of this rank's.
  int64_t rows() const {
    return partition_.share(place() % mesh_.data_ranks()).size() * spec_.data.sequence_length;
  }
  int64_t own_rows() const { return rows() / mesh_.cp; }
  /// The unit of the table that embeds and classifies: alone in it.
  int tied_unit() const {
    if (model_.two_tables) return -1;
    const int64_t h = spec_.model.hidden;
    const int64_t table = (model_.padded_vocab * h + 63) / 64 * 64;
    for (int unit = 0; unit < units(); ++unit) {
      // With slices what tensor ranks have whole may be as large by chance.
      if (cell_.slices && this->unit(unit).whole) continue;
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
  /// Elements cut among ranks: ceil(n / P) of their n blocks each, the last ranks what is left of
  /// them. Reckoned here on purpose, apart from layout::Layout.
  static std::vector<int64_t> cut(int64_t elements, int64_t ranks, int64_t block) {
    const int64_t blocks = (elements + block - 1) / block;
    const int64_t most = (blocks + ranks - 1) / ranks;
    std::vector<int64_t> parts;
    for (int64_t rank = 0; rank < ranks; ++rank)
      parts.push_back(block * std::clamp<int64_t>(blocks - rank * most, 0, most));
    return parts;
  }
  /// The elements of each rank that shares a unit; with `mode: DataParallel` the first has all.
  std::vector<int64_t> shares(int unit) const {
    if (cell_.mode != api::ParallelMode::kDataParallel) return cut(whole(unit), mesh_.fsdp, 64);
    std::vector<int64_t> shares(static_cast<size_t>(mesh_.fsdp), 0);
    shares.front() = cut(whole(unit), 1, 64).front();
    return shares;
  }
  int64_t own(int unit) const { return shares(unit)[static_cast<size_t>(own_)]; }

  void flops(int64_t steps, Expected& all) const {
    const api::ModelSpec& m = spec_.model;
    int64_t blocks = 0;
    for (const layout::Range& stage : rank_.stages)
      blocks += stage.size() - (stage.begin == 0 ? 1 : 0) - (stage.end == layers() ? 1 : 0);
    const bool has_head = rank_.stages.back().end == layers();
    const int64_t matrices =
        blocks * model_.matrices() + (has_head ? model_.padded_vocab * m.hidden : 0);
    all.gemm_flops = steps * 6 * own_rows() * matrices;
    // 6 C T a token and layer of heads of C features together, the causal count (llm.c): two
    // products forward, four backward, each 2 C T/2. Backward's second S is recomputation and not
    // counted.
    // A window W leaves out (T - W)^2 of the T^2; of documents the rank's batches were counted.
    const int64_t length = spec_.data.sequence_length;
    const int64_t hidden = m.sliding_window > 0 ? length - m.sliding_window : 0;
    const int64_t pairs = spec_.data.documents == api::Documents::kIsolate
                              ? rank_.attention_pairs
                              : steps * rows() / length * (length * length - hidden * hidden);
    all.attention_flops = 6 * pairs * blocks * model_.query / mesh_.cp;
    if (cell_.recompute != api::Recompute::kFull) return;
    // A block's forward but for the product that ends it; the cheap ops have no product.
    all.recomputed_gemm_flops =
        steps * 2 * own_rows() * blocks * (model_.matrices() - m.hidden * model_.ffn);
    all.recomputed_attention_flops = all.attention_flops / 3;
  }

  void states(Expected& all) const {
    const int64_t matrix_bytes = spec_.precision.compute == api::NumberFormat::kBF16 ? 2 : 4;
    Elements elements;
    for (const layout::Range& stage : rank_.stages) {
      const Elements of_stage = elements_of(spec_.model, model_, stage);
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
    return buffers(largest_rows(), bytes, columns);
  }
  /// The same of what tensor ranks have slices of, where they have any.
  int64_t sliced(int64_t bytes, std::initializer_list<int64_t> columns) const {
    return buffers(largest_rows() / slices(), bytes, columns);
  }
  int64_t slices() const { return cell_.slices ? mesh_.tp : 1; }
  int64_t largest_rows() const {
    return partition_.micro_batch(place() % mesh_.data_ranks(), 0).size() *
           spec_.data.sequence_length / mesh_.cp;
  }
  static int64_t buffers(int64_t rows, int64_t bytes, std::initializer_list<int64_t> columns) {
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
    const int64_t input = sliced(4, {h});
    // What the cheap ops leave for gradients of weights: two normed values and the activated ones,
    // and the norms' statistics.
    int64_t statistics = 2 * model_.norm_vectors * sliced(4, {1});
    if (model_.head_norm) statistics += buffers(4, {model_.heads + model_.kv_heads});
    const int64_t cheap = sliced(compute, {h, h}) + buffers(compute, {model_.ffn}) + statistics;
    // What attention reads beside the values that heads' norms began with.
    const int64_t turned = model_.head_norm ? buffers(compute, {model_.gathered}) : 0;
    // The rest: q, k and v, the heads, what goes into the activation; the middle of the residual
    // stream; the attention's statistics.
    int64_t dear = buffers(compute, {model_.gathered, model_.query, model_.gates * model_.ffn}) +
                   sliced(4, {h}) + buffers(4, {model_.heads});
    // Of context ranks attention reads what they have exchanged, and so do they of what it writes.
    const bool exchanges = mesh_.cp > 1 && !cell_.ring;
    if (exchanges) dear += buffers(compute, {model_.query}) + turned;
    const bool full = cell_.recompute == api::Recompute::kFull;
    const bool again = cell_.recompute != api::Recompute::kNone;
    const int64_t in_block =
        input + (full ? 0 : dear) + (again ? 0 : cheap + (exchanges ? 0 : turned));
    const int64_t kept = blocks * in_block + (has_head ? input : 0);
    if (!weights_apart()) return in_flight(stage) * kept;
    // Gradients of what the norms and the products leave.
    int64_t owed = sliced(4, {h, h}) + sliced(compute, {h, h}) +
                   buffers(compute, {model_.packed, model_.gates * model_.ffn}) + turned;
    if (again) owed += cheap;
    if (full) owed += buffers(compute, {model_.query}) + sliced(4, {h}) + turned;  // and middle
    owed *= blocks;
    if (has_head) {
      owed += buffers(compute, {model_.padded_vocab}) + sliced(compute, {h}) + sliced(4, {h}) +
              model_.norm_vectors * sliced(4, {1});
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

  /// What tensor ranks exchange in a micro-batch of `rows`: in each block what its two products of
  /// inputs leave goes forward and what its two products of outputs leave goes back, as exact sums
  /// to who rounds them and rounded to all; rows of the embedding as they are; statistics of the
  /// loss, and the gradient of what the head reads.
  int64_t tensor_bytes(int64_t rows) const {
    std::vector<int64_t> of_rows;
    for (int64_t rank = 0; rank < mesh_.tp; ++rank)
      of_rows.push_back(rows * (rank + 1) / mesh_.tp - rows * rank / mesh_.tp);
    std::vector<int64_t> counts;
    for (const int64_t count : of_rows)
      counts.push_back(count * model_.hidden);
    const int64_t summed = comm::reduce_scatter_bytes_sent(tp(), counts, DType::kInt64) +
                           comm::all_gather_bytes_sent(tp(), counts, DType::kFloat32);
    int64_t bytes = 0;
    for (const layout::Range& stage : rank_.stages) {
      const bool embeds = stage.begin == 0;
      const bool has_head = stage.end == layers();
      const int64_t blocks = stage.size() - (embeds ? 1 : 0) - (has_head ? 1 : 0);
      // The product that ends a block is not computed again.
      bytes += blocks * summed * (cell_.recompute == api::Recompute::kFull ? 5 : 4);
      if (model_.head_norm) {
        bytes += blocks *
                 comm::all_reduce_bytes_sent(mesh_.tp, tp(), 2 * model_.head_dim, DType::kInt64);
      }
      bytes += blocks * shared_key_bytes(rows);
      if (embeds) {
        bytes += comm::all_reduce_bytes_sent(mesh_.tp, tp(), rows * model_.hidden, DType::kInt32);
      }
      if (has_head) bytes += summed;
    }
    return bytes + statistics_bytes(rows);
  }

  /// What tensor ranks that share key heads tell each other of a block: each its columns of keys
  /// and values, and what its queries add to all of their gradients.
  int64_t shared_key_bytes(int64_t rows) const {
    if (model_.keys == 0) return 0;
    const DType compute =
        spec_.precision.compute == api::NumberFormat::kBF16 ? DType::kBFloat16 : DType::kFloat32;
    const std::vector<int64_t> counts(static_cast<size_t>(mesh_.tp), rows * model_.keys / mesh_.tp);
    const int64_t passes = cell_.recompute == api::Recompute::kFull ? 2 : 1;
    return passes * comm::all_gather_bytes_sent(tp(), counts, compute) +
           comm::all_reduce_bytes_sent(mesh_.tp, tp(), rows * model_.keys, DType::kInt64);
  }

  /// The same where they have slices: in each block all gather what its two products of outputs
  /// read, and get back their slices of what its two products of inputs leave; and the other way
  /// round going back. Gradients of weights gather what they read once more.
  int64_t sliced_tensor_bytes(int64_t sequences) const {
    const int64_t length = spec_.data.sequence_length / mesh_.cp;
    const std::vector<int64_t> counts(static_cast<size_t>(mesh_.tp),
                                      length / mesh_.tp * model_.hidden);
    const DType compute =
        spec_.precision.compute == api::NumberFormat::kBF16 ? DType::kBFloat16 : DType::kFloat32;
    const int64_t summed = comm::reduce_scatter_bytes_sent(tp(), counts, DType::kInt64);
    const int64_t gathered = comm::all_gather_bytes_sent(tp(), counts, compute);
    int64_t bytes = 0;
    int64_t shared = 0;  // of all sequences at once
    for (const layout::Range& stage : rank_.stages) {
      const bool embeds = stage.begin == 0;
      const bool has_head = stage.end == layers();
      const int64_t blocks = stage.size() - (embeds ? 1 : 0) - (has_head ? 1 : 0);
      bytes += blocks * (4 * summed + 8 * gathered);
      shared += blocks * shared_key_bytes(sequences * length);
      // The product that ends a block is not computed again.
      if (cell_.recompute == api::Recompute::kFull) bytes += blocks * (summed + 2 * gathered);
      if (embeds) {
        bytes += comm::reduce_scatter_bytes_sent(tp(), counts, DType::kInt32) +
                 comm::all_gather_bytes_sent(tp(), counts, DType::kFloat32);
      }
      if (!has_head) continue;
      bytes += summed + 2 * gathered;
    }
    return sequences * bytes + shared + statistics_bytes(sequences * length);
  }

  /// What context ranks exchange in `sequences`: of each block all but their own part of queries,
  /// keys and values goes to the ranks that have their heads, what attention makes of them comes
  /// back, and the gradients go the other way round.
  int64_t context_bytes(int64_t sequences) const {
    const int64_t compute = spec_.precision.compute == api::NumberFormat::kBF16 ? 2 : 4;
    const bool full = cell_.recompute == api::Recompute::kFull;
    const int64_t forward = compute * (model_.packed + model_.query);
    const int64_t backward = compute * model_.packed + 4 * model_.query;
    int64_t blocks = 0;
    for (const layout::Range& stage : rank_.stages)
      blocks += stage.size() - (stage.begin == 0 ? 1 : 0) - (stage.end == layers() ? 1 : 0);
    const int64_t own = sequences * spec_.data.sequence_length / mesh_.cp;
    return blocks * own * ((full ? 2 : 1) * forward + backward) / mesh_.cp * (mesh_.cp - 1);
  }

  /// What the ranks of a ring hand around in `sequences`, of each block: keys and values of 1/(2c)
  /// of the positions go to all whose last positions are behind them, and 8 bytes of gradient for
  /// each number of them come back. Rank r's first block goes to all others, its last one to the
  /// r ranks before it, whose last positions come later; it sees those of c - 1 others, and the
  /// last ones of the c - 1 - r ranks behind it.
  int64_t ring_bytes(int64_t sequences) const {
    const int64_t compute = spec_.precision.compute == api::NumberFormat::kBF16 ? 2 : 4;
    const int64_t passes = cell_.recompute == api::Recompute::kFull ? 3 : 2;
    const int64_t others = mesh_.cp - 1;
    const int64_t handed = others + cp();
    const int64_t returned = 2 * others - cp();
    const int64_t numbers = sequences * spec_.data.sequence_length / (2 * int64_t{mesh_.cp}) *
                            (model_.packed - model_.query);
    int64_t blocks = 0;
    for (const layout::Range& stage : rank_.stages)
      blocks += stage.size() - (stage.begin == 0 ? 1 : 0) - (stage.end == layers() ? 1 : 0);
    return blocks * numbers * (passes * compute * handed + 8 * returned);
  }

  /// What tensor ranks with a head tell each other of the loss of each row.
  int64_t statistics_bytes(int64_t rows) const {
    if (rank_.stages.back().end != layers()) return 0;
    const int64_t pieces = *spec_.numerics.tensor_chunks / mesh_.tp;
    const std::vector<int64_t> statistics(static_cast<size_t>(mesh_.tp), rows * (2 * pieces + 1));
    return comm::all_gather_bytes_sent(tp(), statistics, DType::kFloat32);
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
      const int of_stage = mesh_.dp * mesh_.cp;
      int copies = tied ? 2 * of_stage : of_stage;
      int index = (tied && pp() > 0 ? of_stage : 0) + dp() * mesh_.cp + cp();
      if (cell_.slices && this->unit(unit).whole) {
        // Each tensor rank has a part of its gradient.
        copies *= mesh_.tp;
        index = index * mesh_.tp + tp();
      }
      if (copies > 1) {
        // Exact sums to who rounds them, and what that gives to all.
        const std::vector<int64_t> rounded = cut(own(unit), copies, 32);
        by_step += comm::reduce_scatter_bytes_sent(index, rounded, DType::kInt64);
        by_step += comm::all_gather_bytes_sent(index, rounded, DType::kFloat32);
      }
    }
    // Activations to the stage after, gradients to the one before.
    int messages = 0;
    for (const layout::Range& stage : rank_.stages)
      messages += (stage.begin > 0 ? 1 : 0) + (stage.end < layers() ? 1 : 0);
    by_step += messages * own_rows() / slices() * spec_.model.hidden * 4;
    const int64_t d = place() % mesh_.data_ranks();
    for (const int64_t sequences : partition_.sizes(d, 0, partition_.micro_batches(d))) {
      if (mesh_.cp > 1) by_step += cell_.ring ? ring_bytes(sequences) : context_bytes(sequences);
      if (mesh_.tp == 1) continue;
      by_step += cell_.slices ? sliced_tensor_bytes(sequences)
                              : tensor_bytes(sequences * spec_.data.sequence_length / mesh_.cp);
    }
    return at_start + steps * by_step;
  }

  const api::EngineSpec& spec_;
  const Architecture model_;
  const Cell& cell_;
  const RankFacts& rank_;
  const layout::Mesh mesh_;
  data::BatchPartition partition_;
  int own_ = 0;
  int64_t rounds_ = 1;
  bool cuts_sums_ = false;
  bool cuts_weights_ = false;
};

}  // namespace

Expected expected_of(const api::EngineSpec& spec, const Cell& cell, const RankFacts& rank,
                     int64_t steps) {
  return Formulas(spec, cell, rank).expected(steps);
}

}  // namespace trainyard::matrix
