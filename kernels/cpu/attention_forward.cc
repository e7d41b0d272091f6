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

  ForwardHead(const AttentionForward& p, int64_t index, int64_t head, AttentionScratch& scratch)
      : p_(p),
        sequence_(p.rows.sequences.data()[index]),
        keys_(keys_of(p, index)),
        head_(head),
        s_(scratch),
        carried_(carried_of(p, sequence_, head, scratch)),
        h_(head_of<Input>(p, sequence_, keys_, head)),
        sight_(p, sequence_),
        scale_(score_scale(p.head_dim)) {
    if (p.dropout.rate > 0) stream_ = dropout_stream(p.dropout, sequence_.ordinal);
  }

  /// Returns whether every row's sum of exponentials was finite. Rows and keys are named by their
  /// positions.
  bool run() {
    const int64_t keys_end = keys_.position + keys_.length;
    for (int64_t key0 = keys_.position; key0 < keys_end; key0 += p_.key_block) {
      const int64_t keys = smaller(p_.key_block, keys_end - key0);
      const int64_t rows_end = sight_.rows_end(key0 + keys);
      const int64_t first_row = larger(key0, sequence_.position);
      if (first_row >= rows_end) continue;
      const int64_t key_row = (key0 - keys_.position) * h_.key_stride;
      pack_b<Input>(h_.k + key_row, h_.key_stride, true, h_.dim, keys, words_of<Input>(h_.dim), 0,
                    s_.keys_by_dim);
      pack_b<Input>(h_.v + key_row, h_.key_stride, false, keys, h_.dim, words_of<Input>(keys), 0,
                    s_.values);
      for (int64_t row0 = first_row; row0 < rows_end; row0 += kRowTile) {
        // Tiles begin anew at each block, so that a diagonal block never depends on the sequence.
        const int64_t block_end =
            smaller(sight_.length, ((row0 / p_.key_block) + 1) * p_.key_block);
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
  /// Of the row at a position, its place in the sequence.
  int64_t here(int64_t row) const { return row - sequence_.position; }

  /// Merges keys [key0, key0 + visible) into the rows.
  void merge(int64_t row0, int64_t rows, int64_t key0, int64_t keys, int64_t visible) {
    const int64_t ld = round_up(keys, kLanes);
    const bool first = sight_.first_key(row0) >= key0;
    auto* probabilities = reinterpret_cast<Element*>(s_.probabilities);
    multiply_rows<Input>(h_.q + here(row0) * h_.stride, h_.stride, rows, s_.keys_by_dim,
                         words_of<Input>(h_.dim), h_.dim, visible, keys, false, s_.scores, ld, s_);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t end = smaller(visible, row0 + r - key0 + 1);
      softmax_row(row0 + r, key0, end, first, s_.scores + r * ld, probabilities + r * ld);
      zero_elements(probabilities + r * ld, round_up(end, kLanes), ld);
    }
    multiply_rows<Input>(probabilities, ld, rows, s_.values, words_of<Input>(keys), visible, h_.dim,
                         h_.dim, !first, carried_.carry + here(row0) * h_.padded_dim, h_.padded_dim,
                         s_);
  }

  /// Turns a row's scores of the keys before key0 + end into probabilities relative to the row's
  /// new maximum and rescales what earlier blocks left; `first`: there is none.
  void softmax_row(int64_t row, int64_t key0, int64_t end, bool first, const float* scores,
                   Element* probabilities) {
    const int64_t begin = larger(sight_.first_key(row) - key0, 0);
    if (begin >= end) {  // others of its tile see some of the block
      zero_elements(probabilities, 0, round_up(end, kLanes));
      carried_.row_max[here(row)] = -__builtin_inff();
      carried_.row_sum[here(row)] = 0;
      return;
    }
    const int64_t begin_lane = begin / kLanes * kLanes;
    zero_elements(probabilities, 0, begin_lane);
    const F32x16 scale = broadcast(scale_);
    const float old_max = first ? -__builtin_inff() : carried_.row_max[here(row)];
    F32x16 top = broadcast(old_max);
    for (int64_t j = begin_lane; j < end; j += kLanes) {
      const F32x16 before = top;
      top = select(first_lanes(clamp_lanes(end - j)), max(top, load(scores + j) * scale), top);
      if (j < begin) top = select(first_lanes(clamp_lanes(begin - j)), before, top);
    }
    const float new_max = max_lanes(top);
    const F32x16 shift = broadcast(new_max);
    if (stream_.enabled) {
      dropout_factors(stream_, static_cast<uint32_t>(key0), static_cast<uint32_t>(row),
                      static_cast<uint32_t>(p_.head_offset + head_), end, s_.factors);
    }
    F32x16 sum = zero();
    for (int64_t j = begin_lane; j < end; j += kLanes) {
      const Mask16 valid = first_lanes(clamp_lanes(end - j));
      F32x16 e = select(valid, exp(load(scores + j) * scale - shift), zero());
      if (j < begin) e = select(first_lanes(clamp_lanes(begin - j)), zero(), e);
      sum = sum + e;
      if (stream_.enabled) e = e * load(s_.factors + j);
      store(probabilities + j, e);
    }
    const float block_sum = sum_lanes(sum);
    carried_.row_max[here(row)] = new_max;
    if (first) {
      carried_.row_sum[here(row)] = block_sum;
      return;
    }
    const F32x16 correction = exp(broadcast(old_max) - shift);
    carried_.row_sum[here(row)] =
        first_lane(fma(broadcast(carried_.row_sum[here(row)]), correction, broadcast(block_sum)));
    float* carry = carried_.carry + here(row) * h_.padded_dim;
    for (int64_t d = 0; d < h_.padded_dim; d += kLanes)
      store(carry + d, load(carry + d) * correction);
  }

  void finish(int64_t row0, int64_t rows) {
    const int64_t width = p_.heads * p_.head_dim;
    for (int64_t row = row0; row < row0 + rows; ++row) {
      const F32x16 sum = broadcast(carried_.row_sum[here(row)]);
      const F32x16 inverse = broadcast(1.0F) / sum;
      Element* out = static_cast<Element*>(p_.out.data) + (sequence_.begin + here(row)) * width +
                     head_ * p_.head_dim;
      for (int64_t d = 0; d < h_.dim; d += kLanes) {
        store_partial(out + d, load(carried_.carry + here(row) * h_.padded_dim + d) * inverse,
                      clamp_lanes(h_.dim - d));
      }
      finite_ = finite_ && carried_.row_sum[here(row)] < __builtin_inff();
      p_.lse[sequence_.begin * p_.heads + head_ * sequence_.length + here(row)] =
          carried_.row_sum[here(row)] < __builtin_inff()
              ? carried_.row_max[here(row)] + first_lane(log(sum))
              : __builtin_nanf("");
    }
  }

  const AttentionForward& p_;
  const Sequence& sequence_;
  Sequence keys_;
  int64_t head_;
  AttentionScratch& s_;
  Carried carried_;
  Head<Input> h_;
  Sight sight_;
  float scale_;
  DropoutStream stream_;
  bool finite_ = true;
};

template <class Input>
void run_forward(const CpuContext& context, const AttentionForward& p) {
  parallel_for(context, static_cast<int64_t>(p.rows.sequences.size()) * p.heads,
               [&](int64_t task, int thread) {
                 const MatrixUnit unit;
                 ForwardHead<Input> head(p, task / p.heads, task % p.heads,
                                         *scratch_of<AttentionScratch>(context, thread));
                 if (!head.run() && p.overflow != nullptr) raise(p.overflow);
               });
}

}  // namespace

void attention_forward(const CpuContext& context, const AttentionForward& p) {
  check_limits(p);
  if (p.qkv.type == DType::kBFloat16) {
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
