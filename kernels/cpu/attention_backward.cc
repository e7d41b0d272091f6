// Attention's backward pass: probabilities are recomputed from the saved log-sum-exp. With
// delta_i = dO_i . O_i:  dV = P^T dO,  dS = P (dO V^T - delta) scale,  dQ = dS K,  dK = dS^T Q.

#include "kernels/cpu/attention.h"
#include "kernels/cpu/ops.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

// Key rows of dK and dV that share their first query row; a multiple of every kTileRows and of the
// elements that are added up together.
template <class Input>
constexpr int64_t kKeyGroup = Input::kSumWords == 1 ? 48 : 96;

/// One key and value head of what one sequence reads, and the group of query heads that reads it.
template <class Input>
class BackwardGroup {
 public:
  using Element = typename Input::Element;

  BackwardGroup(const AttentionBackward& p, int64_t index, int64_t kv_head,
                AttentionScratch& scratch)
      : p_(p),
        sequence_(p.rows.sequences.data()[index]),
        keys_(keys_of(p, index)),
        kv_head_(kv_head),
        s_(scratch),
        carried_(carried_of(p, sequence_, kv_head * group_of(p), scratch)),
        h_(head_of<Input>(p, sequence_, keys_, kv_head * group_of(p))),
        sight_(p, sequence_),
        scale_(score_scale(p.head_dim)),
        width_(p.heads * p.head_dim),
        fixed_(kActivationQuantumLog2,
               fitting_log2(ceil_div(positions_of(p, index), p.key_block) * group_of(p) *
                            (p.keys == nullptr ? 1 : p.keys->sharers))) {
    if (p.dropout.rate > 0) stream_ = dropout_stream(p.dropout, sequence_.ordinal);
  }

  /// Rows and keys are named by their positions.
  void run() {
    const int64_t keys_end = keys_.position + keys_.length;
    if (sight_.length <= keys_.position) return;
    for (int64_t i = 0; i < group_of(p_); ++i) {
      turn_to(i);
      for (int64_t row = 0; row < sequence_.length; ++row)
        delta_[row] = delta_of(row);
    }
    for (int64_t key0 = keys_.position; key0 < keys_end; key0 += p_.key_block)
      run_key_block(key0, smaller(p_.key_block, keys_end - key0));
    // Of rows that see none of the keys behind.
    for (int64_t i = 0; sight_.length <= keys_end && i < group_of(p_); ++i) {
      turn_to(i);
      for (int64_t row = 0; row < sequence_.length; ++row)
        store_row(carry_ + row * h_.padded_dim, gradient_row(row) + head_ * p_.head_dim);
    }
    fixed_.report(p_.overflow);
  }

 private:
  /// Of the whole sample: what the partials of a key's sums are counted by.
  static int64_t positions_of(const AttentionBackward& p, int64_t index) {
    return p.keys == nullptr ? p.rows.sequences.data()[index].length
                             : p.keys->samples.data()[index / pieces_of(p)].length;
  }
  /// Of the row at a position, its place in the sequence.
  int64_t here(int64_t row) const { return row - sequence_.position; }

  /// Turns to the i-th query head of the group.
  void turn_to(int64_t i) {
    head_ = kv_head_ * group_of(p_) + i;
    h_ = head_of<Input>(p_, sequence_, keys_, head_);
    carry_ = carried_.carry + i * sequence_.length * h_.padded_dim;
    delta_ = s_.row_a + i * sequence_.length;
  }

  const float* d_out_row(int64_t row) const {
    return static_cast<const float*>(p_.d_out.data) + (sequence_.begin + row) * width_ +
           head_ * p_.head_dim;
  }
  /// Row of the gradient of the packed projections.
  Element* gradient_row(int64_t row) const {
    return static_cast<Element*>(p_.d_qkv.data) + (sequence_.begin + row) * packed_width(p_);
  }
  void store_row(const float* from, Element* to) const {
    for (int64_t d = 0; d < h_.dim; d += kLanes) {
      store_partial(to + d, load(from + d), clamp_lanes(h_.dim - d));
    }
  }

  float delta_of(int64_t row) const {
    const Element* out = static_cast<const Element*>(p_.out.data) +
                         (sequence_.begin + row) * width_ + head_ * p_.head_dim;
    const float* d_out = d_out_row(row);
    F32x16 sum = zero();
    for (int64_t d = 0; d < h_.dim; d += kLanes) {
      const int count = clamp_lanes(h_.dim - d);
      sum = fma(load_partial(d_out + d, count), load_partial(out + d, count), sum);
    }
    return sum_lanes(sum);
  }

  void run_key_block(int64_t key0, int64_t keys) {
    const int64_t dim_words = words_of<Input>(h_.dim);
    const int64_t key_row = (key0 - keys_.position) * h_.key_stride;
    const Element* k = h_.k + key_row;
    pack_b<Input>(k, h_.key_stride, true, h_.dim, keys, dim_words, 0, s_.keys_by_dim);
    pack_b<Input>(h_.v + key_row, h_.key_stride, true, h_.dim, keys, dim_words, 0,
                  s_.values_by_dim);
    pack_b<Input>(k, h_.key_stride, false, keys, h_.dim, words_of<Input>(keys), 0, s_.keys);
    const auto totals = static_cast<size_t>(keys * h_.padded_dim) * sizeof(int64_t);
    __builtin_memset(s_.d_keys, 0, totals);
    __builtin_memset(s_.d_values, 0, totals);
    for (int64_t i = 0; i < group_of(p_); ++i) {
      turn_to(i);
      const int64_t rows_end = sight_.rows_end(key0 + keys);
      for (int64_t row0 = larger(key0, sequence_.position); row0 < rows_end; row0 += p_.key_block) {
        const int64_t rows = smaller(p_.key_block, sight_.length - row0);
        run_pair(row0, smaller(rows, round_up(rows_end - row0, kRowTile)), key0, keys);
      }
    }
    if (p_.keys != nullptr) {
      add_key_sums(key0, keys);
      return;
    }
    for (int64_t j = 0; j < keys; ++j) {
      Element* const d_key = gradient_row(key0 + j) + width_ + kv_head_ * p_.head_dim;
      round_row(s_.d_keys + j * h_.padded_dim, d_key);
      round_row(s_.d_values + j * h_.padded_dim, d_key + p_.kv_heads * p_.head_dim);
    }
  }

  /// To those of the other rows that see the keys.
  void add_key_sums(int64_t key0, int64_t keys) const {
    const int64_t kv_width = p_.kv_heads * p_.head_dim;
    for (int64_t j = 0; j < keys; ++j) {
      int64_t* const d_key = p_.keys->d_kv +
                             (keys_.begin + key0 - keys_.position + j) * 2 * kv_width +
                             kv_head_ * p_.head_dim;
      for (int64_t d = 0; d < h_.dim; ++d) {
        d_key[d] += s_.d_keys[j * h_.padded_dim + d];
        d_key[kv_width + d] += s_.d_values[j * h_.padded_dim + d];
      }
    }
  }

  void round_row(const int64_t* total, Element* to) const {
    const F32x16 quantum = broadcast(power_of_two(-kActivationQuantumLog2));
    for (int64_t d = 0; d < h_.dim; d += kLanes) {
      store_partial(to + d, to_float(load_i64(total + d)) * quantum, clamp_lanes(h_.dim - d));
    }
  }

  /// One grain of queries against one block of keys.
  void run_pair(int64_t row0, int64_t rows, int64_t key0, int64_t keys) {
    const int64_t ld = round_up(keys, kLanes);
    const bool diagonal = row0 == key0;
    const Element* d_out = nullptr;
    const int64_t d_out_stride = load_d_out(here(row0), rows, d_out);
    auto* probabilities = reinterpret_cast<Element*>(s_.probabilities);
    auto* score_gradients = reinterpret_cast<Element*>(s_.score_gradients);
    for (int64_t r = 0; r < rows; r += kRowTile) {
      const int64_t count = smaller(kRowTile, rows - r);
      const int64_t visible = diagonal ? visible_keys<Input>(keys, r + kRowTile) : keys;
      const int64_t dim_words = words_of<Input>(h_.dim);
      const bool first = sight_.first_key(row0 + r) >= key0;
      multiply_rows<Input>(h_.q + here(row0 + r) * h_.stride, h_.stride, count, s_.keys_by_dim,
                           dim_words, h_.dim, visible, keys, false, s_.scores, ld, s_);
      multiply_rows<Input>(d_out + r * d_out_stride, d_out_stride, count, s_.values_by_dim,
                           dim_words, h_.dim, visible, keys, false, s_.gradients, ld, s_);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = (r + i) * ld;
        const int64_t end = smaller(visible, row0 + r + i - key0 + 1);
        softmax_gradient_row(row0 + r + i, key0, end, s_.scores + i * ld, s_.gradients + i * ld,
                             probabilities + at, score_gradients + at);
        zero_elements(probabilities + at, round_up(end, kLanes), ld);
        zero_elements(score_gradients + at, round_up(end, kLanes), ld);
      }
      multiply_rows<Input>(score_gradients + r * ld, ld, count, s_.keys, words_of<Input>(keys),
                           visible, h_.dim, h_.dim, !first, carry_ + here(row0 + r) * h_.padded_dim,
                           h_.padded_dim, s_);
    }
    add_grain(probabilities, ld, d_out, d_out_stride, rows, keys, diagonal, s_.d_values);
    add_grain(score_gradients, ld, h_.q + here(row0) * h_.stride, h_.stride, rows, keys, diagonal,
              s_.d_keys);
  }

  /// dO of the rows in the input's type; returns its row stride.
  int64_t load_d_out(int64_t row0, int64_t rows, const Element*& d_out) const {
    if constexpr (sizeof(Element) == sizeof(float)) {
      d_out = d_out_row(row0);
      return width_;
    } else {
      auto* converted = reinterpret_cast<Element*>(s_.d_out);
      for (int64_t r = 0; r < rows; ++r) {
        const float* from = d_out_row(row0 + r);
        for (int64_t d = 0; d < h_.dim; d += kLanes) {
          store(converted + r * h_.padded_dim + d, load_partial(from + d, clamp_lanes(h_.dim - d)));
        }
      }
      d_out = converted;
      return h_.padded_dim;
    }
  }

  /// P (after dropout) and dS of one row, of the keys before key0 + end.
  void softmax_gradient_row(int64_t row, int64_t key0, int64_t end, const float* scores,
                            const float* d_probabilities, Element* probabilities,
                            Element* score_gradients) {
    const int64_t begin = smaller(larger(sight_.first_key(row) - key0, 0), round_up(end, kLanes));
    const int64_t begin_lane = begin / kLanes * kLanes;
    zero_elements(probabilities, 0, begin_lane);
    zero_elements(score_gradients, 0, begin_lane);
    const F32x16 scale = broadcast(scale_);
    const F32x16 shift =
        broadcast(p_.lse[sequence_.begin * p_.heads + head_ * sequence_.length + here(row)]);
    const F32x16 delta = broadcast(delta_[here(row)]);
    if (stream_.enabled) {
      dropout_factors(stream_, static_cast<uint32_t>(key0), static_cast<uint32_t>(row),
                      static_cast<uint32_t>(p_.head_offset + head_), end, s_.factors);
    }
    for (int64_t j = begin_lane; j < end; j += kLanes) {
      const Mask16 valid = first_lanes(clamp_lanes(end - j));
      F32x16 e = select(valid, exp(load(scores + j) * scale - shift), zero());
      if (j < begin) e = select(first_lanes(clamp_lanes(begin - j)), zero(), e);
      F32x16 dropped = e;
      F32x16 d = load(d_probabilities + j);
      if (stream_.enabled) {
        const F32x16 factor = load(s_.factors + j);
        dropped = e * factor;
        d = d * factor;
      }
      store(probabilities + j, dropped);
      F32x16 gradient = select(valid, (e * (d - delta)) * scale, zero());
      if (j < begin) gradient = select(first_lanes(clamp_lanes(begin - j)), zero(), gradient);
      store(score_gradients + j, gradient);
    }
  }

  /// totals[keys, dim] += fixed(A^T B), A [rows, keys] and B [rows, dim], one chain per grain.
  /// On the diagonal, A is 0 above it: those leading terms leave +0 and are skipped.
  void add_grain(const Element* a, int64_t lda, const Element* b, int64_t ldb, int64_t rows,
                 int64_t keys, bool diagonal, int64_t* totals) {
    const int64_t words = words_of<Input>(rows);
    pack_b<Input>(b, ldb, false, rows, h_.dim, words, 0, s_.rows);
    pack_a<Input>(a, lda, true, rows, keys, words, 0, s_.transposed);
    constexpr int64_t kGroup = kKeyGroup<Input>;
    static_assert(kGroup % kTileRows == 0 && kGroup % (Input::kSumWords * Input::kPerWord) == 0);
    for (int64_t j = 0; j < keys; j += kGroup) {
      const int64_t count = smaller(kGroup, keys - j);
      const int64_t skipped = diagonal ? words_of<Input>(j) : 0;
      const uint32_t* panel = s_.transposed + (j / kTileRows * words + skipped) * kTileRows;
      multiply_block<Input>(packed_tile<Input>(panel, words, true), words * kTileRows * 4, count,
                            s_.rows, words, skipped, words - skipped, h_.dim, h_.dim, false,
                            s_.gradients, h_.padded_dim);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t d = 0; d < h_.dim; d += kLanes) {
          add_to(
              totals + (j + i) * h_.padded_dim + d,
              fixed_.convert(load(s_.gradients + i * h_.padded_dim + d), clamp_lanes(h_.dim - d)),
              kLanes);
        }
      }
    }
  }

  const AttentionBackward& p_;
  const Sequence& sequence_;
  Sequence keys_;
  int64_t kv_head_;
  AttentionScratch& s_;
  Carried carried_;
  // Of the query head at hand.
  Head<Input> h_;
  int64_t head_ = 0;
  float* carry_ = nullptr;
  float* delta_ = nullptr;
  Sight sight_;
  float scale_;
  int64_t width_;
  DropoutStream stream_;
  FixedPoint fixed_;
};

template <class Input>
void run_backward(const CpuContext& context, const AttentionBackward& p) {
  // One after the other the pieces of a sample add to what its keys get.
  const int64_t pieces = pieces_of(p);
  const int64_t samples = static_cast<int64_t>(p.rows.sequences.size()) / pieces;
  parallel_for(context, samples * p.kv_heads, [&](int64_t task, int thread) {
    const MatrixUnit unit;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      BackwardGroup<Input> group(p, task / p.kv_heads * pieces + piece, task % p.kv_heads,
                                 *scratch_of<AttentionScratch>(context, thread));
      group.run();
    }
  });
}

}  // namespace

void attention_backward(const CpuContext& context, const AttentionBackward& p) {
  check_limits(p);
  check_group(p);
  if (p.qkv.type == DType::kBFloat16) {
    run_backward<BFloat16Input>(context, p);
  } else {
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX
    isa_avx512_bf16::attention_backward(context, p);
#else
    run_backward<Float32Input>(context, p);
#endif
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE
