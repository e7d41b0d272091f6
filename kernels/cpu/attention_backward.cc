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

template <class Input>
class BackwardHead {
 public:
  using Element = typename Input::Element;

  BackwardHead(const AttentionBackward& p, const Sequence& sequence, int64_t head,
               AttentionScratch& scratch)
      : p_(p),
        sequence_(sequence),
        head_(head),
        s_(scratch),
        h_(head_of<Input>(p, sequence, head)),
        scale_(score_scale(p.head_dim)),
        width_(p.heads * p.head_dim),
        fixed_(kActivationQuantumLog2, fitting_log2(ceil_div(sequence.length, p.key_block))) {
    if (p.dropout.rate > 0) stream_ = dropout_stream(p.dropout, sequence.ordinal);
  }

  void run() {
    for (int64_t row = 0; row < sequence_.length; ++row)
      s_.row_a[row] = delta_of(row);
    for (int64_t key0 = 0; key0 < sequence_.length; key0 += p_.key_block)
      run_key_block(key0);
    for (int64_t row = 0; row < sequence_.length; ++row) {
      store_row(s_.carry + row * h_.padded_dim, gradient_row(row, 0));
    }
    fixed_.report(p_.overflow);
  }

 private:
  const float* d_out_row(int64_t row) const {
    return p_.d_out + (sequence_.begin + row) * width_ + head_ * p_.head_dim;
  }
  /// Row of dQ (part 0), dK (1) or dV (2).
  Element* gradient_row(int64_t row, int64_t part) const {
    return static_cast<Element*>(p_.d_qkv) + (sequence_.begin + row) * 3 * width_ + part * width_ +
           head_ * p_.head_dim;
  }
  void store_row(const float* from, Element* to) const {
    for (int64_t d = 0; d < h_.dim; d += kLanes) {
      store_partial(to + d, load(from + d), clamp_lanes(h_.dim - d));
    }
  }

  float delta_of(int64_t row) const {
    const Element* out = static_cast<const Element*>(p_.out) + (sequence_.begin + row) * width_ +
                         head_ * p_.head_dim;
    const float* d_out = d_out_row(row);
    F32x16 sum = zero();
    for (int64_t d = 0; d < h_.dim; d += kLanes) {
      const int count = clamp_lanes(h_.dim - d);
      sum = fma(load_partial(d_out + d, count), load_partial(out + d, count), sum);
    }
    return sum_lanes(sum);
  }

  void run_key_block(int64_t key0) {
    const int64_t keys = smaller(p_.key_block, sequence_.length - key0);
    const int64_t dim_words = words_of<Input>(h_.dim);
    const Element* k = h_.k + key0 * h_.stride;
    pack_b<Input>(k, h_.stride, true, h_.dim, keys, dim_words, 0, s_.keys_by_dim);
    pack_b<Input>(h_.v + key0 * h_.stride, h_.stride, true, h_.dim, keys, dim_words, 0,
                  s_.values_by_dim);
    pack_b<Input>(k, h_.stride, false, keys, h_.dim, words_of<Input>(keys), 0, s_.keys);
    const auto totals = static_cast<size_t>(keys * h_.padded_dim) * sizeof(int64_t);
    __builtin_memset(s_.d_keys, 0, totals);
    __builtin_memset(s_.d_values, 0, totals);
    for (int64_t row0 = key0; row0 < sequence_.length; row0 += p_.key_block) {
      run_pair(row0, smaller(p_.key_block, sequence_.length - row0), key0, keys);
    }
    for (int64_t j = 0; j < keys; ++j) {
      round_row(s_.d_keys + j * h_.padded_dim, gradient_row(key0 + j, 1));
      round_row(s_.d_values + j * h_.padded_dim, gradient_row(key0 + j, 2));
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
    const int64_t d_out_stride = load_d_out(row0, rows, d_out);
    auto* probabilities = reinterpret_cast<Element*>(s_.probabilities);
    auto* score_gradients = reinterpret_cast<Element*>(s_.score_gradients);
    for (int64_t r = 0; r < rows; r += kRowTile) {
      const int64_t count = smaller(kRowTile, rows - r);
      const int64_t visible = diagonal ? visible_keys<Input>(keys, r + kRowTile) : keys;
      const int64_t dim_words = words_of<Input>(h_.dim);
      multiply_rows<Input>(h_.q + (row0 + r) * h_.stride, h_.stride, count, s_.keys_by_dim,
                           dim_words, h_.dim, visible, keys, false, s_.scores, ld, s_);
      multiply_rows<Input>(d_out + r * d_out_stride, d_out_stride, count, s_.values_by_dim,
                           dim_words, h_.dim, visible, keys, false, s_.gradients, ld, s_);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = (r + i) * ld;
        const int64_t allowed = smaller(visible, row0 + r + i - key0 + 1);
        softmax_gradient_row(row0 + r + i, key0, allowed, s_.scores + i * ld, s_.gradients + i * ld,
                             probabilities + at, score_gradients + at);
        zero_elements(probabilities + at, round_up(allowed, kLanes), ld);
        zero_elements(score_gradients + at, round_up(allowed, kLanes), ld);
      }
      multiply_rows<Input>(score_gradients + r * ld, ld, count, s_.keys, words_of<Input>(keys),
                           visible, h_.dim, h_.dim, key0 > 0, s_.carry + (row0 + r) * h_.padded_dim,
                           h_.padded_dim, s_);
    }
    add_grain(probabilities, ld, d_out, d_out_stride, rows, keys, diagonal, s_.d_values);
    add_grain(score_gradients, ld, h_.q + row0 * h_.stride, h_.stride, rows, keys, diagonal,
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

  /// P (after dropout) and dS of one row.
  void softmax_gradient_row(int64_t row, int64_t key0, int64_t allowed, const float* scores,
                            const float* d_probabilities, Element* probabilities,
                            Element* score_gradients) {
    const F32x16 scale = broadcast(scale_);
    const F32x16 shift =
        broadcast(p_.lse[sequence_.begin * p_.heads + head_ * sequence_.length + row]);
    const F32x16 delta = broadcast(s_.row_a[row]);
    if (stream_.enabled) {
      dropout_factors(stream_, static_cast<uint32_t>(key0), static_cast<uint32_t>(row),
                      static_cast<uint32_t>(p_.head_offset + head_), allowed, s_.factors);
    }
    for (int64_t j = 0; j < allowed; j += kLanes) {
      const Mask16 valid = first_lanes(clamp_lanes(allowed - j));
      const F32x16 e = select(valid, exp(load(scores + j) * scale - shift), zero());
      F32x16 dropped = e;
      F32x16 d = load(d_probabilities + j);
      if (stream_.enabled) {
        const F32x16 factor = load(s_.factors + j);
        dropped = e * factor;
        d = d * factor;
      }
      store(probabilities + j, dropped);
      store(score_gradients + j, select(valid, (e * (d - delta)) * scale, zero()));
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
  int64_t head_;
  AttentionScratch& s_;
  Head<Input> h_;
  float scale_;
  int64_t width_;
  DropoutStream stream_;
  FixedPoint fixed_;
};

template <class Input>
void run_backward(const CpuContext& context, const AttentionBackward& p) {
  parallel_for(context, static_cast<int64_t>(p.rows.sequences.size()) * p.heads,
               [&](int64_t task, int thread) {
                 const MatrixUnit unit;
                 BackwardHead<Input> head(p, p.rows.sequences.data()[task / p.heads],
                                          task % p.heads,
                                          *scratch_of<AttentionScratch>(context, thread));
                 head.run();
               });
}

}  // namespace

void attention_backward(const CpuContext& context, const AttentionBackward& p) {
  check_limits(p);
  if (p.type == DType::kBFloat16) {
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
