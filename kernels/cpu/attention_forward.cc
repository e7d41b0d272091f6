// Causal attention with online softmax (Milakov and Gimelshein 2018; blocked as in Dao et al.
// 2022).

#include "kernels/cpu/attention.h"
#include "kernels/cpu/ops.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

template <class Input>
class ForwardHead {
 public:
  using Element = typename Input::Element;

  ForwardHead(const AttentionForward& p, const Sequence& sequence, int64_t head,
              AttentionScratch& scratch)
      : p_(p),
        sequence_(sequence),
        head_(head),
        s_(scratch),
        h_(head_of<Input>(p, sequence, head)),
        scale_(score_scale(p.head_dim)) {
    if (p.dropout.rate > 0) stream_ = dropout_stream(p.dropout, sequence.ordinal);
  }

  /// Returns whether every row's sum of exponentials was finite.
  bool run() {
    for (int64_t key0 = 0; key0 < sequence_.length; key0 += p_.key_block) {
      const int64_t keys = smaller(p_.key_block, sequence_.length - key0);
      pack_b<Input>(h_.k + key0 * h_.stride, h_.stride, true, h_.dim, keys, words_of<Input>(h_.dim),
                    0, s_.keys_by_dim);
      pack_b<Input>(h_.v + key0 * h_.stride, h_.stride, false, keys, h_.dim, words_of<Input>(keys),
                    0, s_.values);
      for (int64_t row0 = key0; row0 < sequence_.length; row0 += kRowTile) {
        // Tiles begin anew at each block, so that a diagonal block never depends on the sequence.
        const int64_t block_end =
            smaller(sequence_.length, ((row0 / p_.key_block) + 1) * p_.key_block);
        const int64_t rows = smaller(kRowTile, block_end - row0);
        const bool diagonal = row0 < key0 + p_.key_block;
        merge(row0, rows, key0, keys,
              diagonal ? visible_keys<Input>(keys, row0 - key0 + kRowTile) : keys);
        if (diagonal) finish(row0, rows);
        if (rows < kRowTile) row0 += rows - kRowTile;
      }
    }
    return finite_;
  }

 private:
  /// Merges keys [key0, key0 + visible) into the rows.
  void merge(int64_t row0, int64_t rows, int64_t key0, int64_t keys, int64_t visible) {
    const int64_t ld = round_up(keys, kLanes);
    auto* probabilities = reinterpret_cast<Element*>(s_.probabilities);
    multiply_rows<Input>(h_.q + row0 * h_.stride, h_.stride, rows, s_.keys_by_dim,
                         words_of<Input>(h_.dim), h_.dim, visible, keys, false, s_.scores, ld, s_);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t allowed = smaller(visible, row0 + r - key0 + 1);
      softmax_row(row0 + r, key0, allowed, s_.scores + r * ld, probabilities + r * ld);
      zero_elements(probabilities + r * ld, round_up(allowed, kLanes), ld);
    }
    multiply_rows<Input>(probabilities, ld, rows, s_.values, words_of<Input>(keys), visible, h_.dim,
                         h_.dim, key0 > 0, s_.carry + row0 * h_.padded_dim, h_.padded_dim, s_);
  }

  /// Turns a row of scores into probabilities relative to the row's new maximum and rescales what
  /// earlier blocks left.
  void softmax_row(int64_t row, int64_t key0, int64_t allowed, const float* scores,
                   Element* probabilities) {
    const F32x16 scale = broadcast(scale_);
    const float old_max = key0 == 0 ? -__builtin_inff() : s_.row_a[row];
    F32x16 top = broadcast(old_max);
    for (int64_t j = 0; j < allowed; j += kLanes) {
      top = select(first_lanes(clamp_lanes(allowed - j)), max(top, load(scores + j) * scale), top);
    }
    const float new_max = max_lanes(top);
    const F32x16 shift = broadcast(new_max);
    if (stream_.enabled) {
      dropout_factors(stream_, static_cast<uint32_t>(key0), static_cast<uint32_t>(row),
                      static_cast<uint32_t>(p_.head_offset + head_), allowed, s_.factors);
    }
    F32x16 sum = zero();
    for (int64_t j = 0; j < allowed; j += kLanes) {
      const Mask16 valid = first_lanes(clamp_lanes(allowed - j));
      F32x16 e = select(valid, exp(load(scores + j) * scale - shift), zero());
      sum = sum + e;
      if (stream_.enabled) e = e * load(s_.factors + j);
      store(probabilities + j, e);
    }
    const float block_sum = sum_lanes(sum);
    s_.row_a[row] = new_max;
    if (key0 == 0) {
      s_.row_b[row] = block_sum;
      return;
    }
    const F32x16 correction = exp(broadcast(old_max) - shift);
    s_.row_b[row] = first_lane(fma(broadcast(s_.row_b[row]), correction, broadcast(block_sum)));
    float* carry = s_.carry + row * h_.padded_dim;
    for (int64_t d = 0; d < h_.padded_dim; d += kLanes)
      store(carry + d, load(carry + d) * correction);
  }

  void finish(int64_t row0, int64_t rows) {
    const int64_t width = p_.heads * p_.head_dim;
    for (int64_t row = row0; row < row0 + rows; ++row) {
      const F32x16 sum = broadcast(s_.row_b[row]);
      const F32x16 inverse = broadcast(1.0F) / sum;
      Element* out =
          static_cast<Element*>(p_.out) + (sequence_.begin + row) * width + head_ * p_.head_dim;
      for (int64_t d = 0; d < h_.dim; d += kLanes) {
        store_partial(out + d, load(s_.carry + row * h_.padded_dim + d) * inverse,
                      clamp_lanes(h_.dim - d));
      }
      finite_ = finite_ && s_.row_b[row] < __builtin_inff();
      p_.lse[sequence_.begin * p_.heads + head_ * sequence_.length + row] =
          s_.row_b[row] < __builtin_inff() ? s_.row_a[row] + first_lane(log(sum))
                                           : __builtin_nanf("");
    }
  }

  const AttentionForward& p_;
  const Sequence& sequence_;
  int64_t head_;
  AttentionScratch& s_;
  Head<Input> h_;
  float scale_;
  DropoutStream stream_;
  bool finite_ = true;
};

template <class Input>
void run_forward(const CpuContext& context, const AttentionForward& p) {
  parallel_for(context, static_cast<int64_t>(p.rows.sequences.size()) * p.heads,
               [&](int64_t task, int thread) {
                 const MatrixUnit unit;
                 ForwardHead<Input> head(p, p.rows.sequences.data()[task / p.heads], task % p.heads,
                                         *scratch_of<AttentionScratch>(context, thread));
                 if (!head.run() && p.overflow != nullptr) raise(p.overflow);
               });
}

}  // namespace

void attention_forward(const CpuContext& context, const AttentionForward& p) {
  check_limits(p);
  if (p.type == DType::kBFloat16) {
    run_forward<BFloat16Input>(context, p);
  } else {
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX
    isa_avx512_bf16::attention_forward(context, p);
#else
    run_forward<Float32Input>(context, p);
#endif
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE
