// Operations that know the sequences of their rows, and the loss: the same bits on every
// instruction set and for any number of threads.

#include "tests/numeric/kernels/equal_bits.h"

namespace trainyard::kernels::test {
namespace {

void record_heads(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  constexpr int64_t kRows = 57;
  constexpr int64_t kHeads = 4;
  constexpr int64_t kKvHeads = 2;
  const std::vector<Sequence> sequences = sequences_of({20, 37}, 0, 3);
  for (const int64_t dim : {int64_t{10}, int64_t{64}}) {
    const int64_t packed = kRows * (kHeads + 2 * kKvHeads) * dim;
    const Tensor x(type, data(packed, 1, flavour));
    const Tensor dy(type, data(packed, 2, flavour));
    const std::vector<float> query_gamma = data(dim, 3, flavour);
    const std::vector<float> key_gamma = data(dim, 4, flavour);
    const std::vector<float> frequencies = data(dim / 2, 5, Flavour::kPlain);
    Tensor y(type, packed);
    Tensor dx(type, packed);
    Tensor turned(type, packed);
    std::vector<float> rstd(static_cast<size_t>(kRows * (kHeads + kKvHeads)));
    std::vector<int64_t> d_query(static_cast<size_t>(dim), 0);
    std::vector<int64_t> d_key(static_cast<size_t>(dim), 0);
    OverflowFlag overflow{0};
    kernels.head_norm_forward({.rows = kRows,
                               .heads = kHeads,
                               .kv_heads = kKvHeads,
                               .head_dim = dim,
                               .x = {x.data(), type},
                               .query_gamma = query_gamma.data(),
                               .key_gamma = key_gamma.data(),
                               .y = {y.data(), type},
                               .rstd = rstd.data()});
    kernels.head_norm_backward_input({.rows = kRows,
                                      .heads = kHeads,
                                      .kv_heads = kKvHeads,
                                      .head_dim = dim,
                                      .dy = {dy.data(), type},
                                      .x = {x.data(), type},
                                      .query_gamma = query_gamma.data(),
                                      .key_gamma = key_gamma.data(),
                                      .rstd = rstd.data(),
                                      .dx = {dx.data(), type}});
    kernels.head_norm_backward_weight({.rows = kRows,
                                       .heads = kHeads,
                                       .kv_heads = kKvHeads,
                                       .head_dim = dim,
                                       .dy = {dy.data(), type},
                                       .x = {x.data(), type},
                                       .rstd = rstd.data(),
                                       .grains = {sequences, 16},
                                       .quantum_log2 = 38,
                                       .partials = 5 * kHeads,
                                       .d_query_gamma = d_query.data(),
                                       .d_key_gamma = d_key.data(),
                                       .overflow = &overflow});
    kernels.rope({.rows = rows_of(sequences),
                  .heads = kHeads,
                  .kv_heads = kKvHeads,
                  .head_dim = dim,
                  .frequencies = frequencies,
                  .scale = 1.1F,
                  .x = {x.data(), type},
                  .y = {turned.data(), type}});
    recorder.add(y);
    recorder.add(rstd);
    recorder.add(dx);
    recorder.add(d_query);
    recorder.add(d_key);
    recorder.add(turned);
    recorder.add(overflow);
  }
}

void record_dropout(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  constexpr int64_t kRows = 30;
  constexpr int64_t kWidth = 301;
  const std::vector<Sequence> sequences = sequences_of({7, 22, 1}, 3, 2);
  const DropoutKey key{.rate = 0.25F, .seed = 5, .op = 6};
  const std::vector<float> x = data(kRows * kWidth, 1, flavour);
  std::vector<float> y = data(kRows * kWidth, 2, flavour);
  Tensor dx(type, kRows * kWidth);
  kernels.dropout_add({.rows = rows_of(sequences),
                       .width = kWidth,
                       .dropout = key,
                       .x = x.data(),
                       .residual = y.data(),
                       .y = y.data()});
  kernels.dropout_backward({.rows = rows_of(sequences),
                            .width = kWidth,
                            .dropout = key,
                            .dy = x.data(),
                            .dx = {dx.data(), type}});
  recorder.add(y);
  recorder.add(dx);
}

void record_embedding(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kWidth = 133;
  std::vector<int32_t> tokens;
  tokens.reserve(kRows);
  for (int32_t i = 0; i < kRows; ++i)
    tokens.push_back(i * i % 17);
  const Tensor wte(type, data(17 * kWidth, 1, flavour));
  const Tensor wpe(type, data(20 * kWidth, 2, flavour));
  const std::vector<float> dy = data(kRows * kWidth, 3, flavour);
  const std::vector<Sequence> sequences = sequences_of({20, 20});
  std::vector<float> y(dy.size());
  kernels.embedding_forward({.rows = rows_of(sequences),
                             .width = kWidth,
                             .tokens = tokens.data(),
                             .wte = {wte.data(), type},
                             .wpe = {wpe.data(), type},
                             .y = y.data()});
  std::vector<int64_t> d_wte(size_t{17} * kWidth, 0);
  std::vector<int64_t> d_wpe(size_t{20} * kWidth, 0);
  OverflowFlag overflow{0};
  kernels.embedding_backward({.rows = rows_of(sequences),
                              .width = kWidth,
                              .tokens = tokens.data(),
                              .dy = dy.data(),
                              .quantum_log2 = 38,
                              .d_wte = d_wte.data(),
                              .d_wpe = d_wpe.data(),
                              .overflow = &overflow});
  recorder.add(y);
  recorder.add(d_wte);
  recorder.add(d_wpe);
  recorder.add(overflow);
}

void record_attention(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  struct Shape {
    int64_t samples, tokens, heads, kv_heads, head_dim, key_block;
    float rate;
    int64_t window = 0;
  };
  for (const Shape& s :
       {Shape{2, 43, 3, 3, 22, 128, 0.0F}, Shape{1, 75, 2, 2, 64, 24, 0.15F},
        Shape{1, 300, 1, 1, 48, 128, 0.0F}, Shape{2, 75, 6, 2, 32, 24, 0.15F},
        Shape{2, 75, 6, 2, 32, 24, 0.15F, 29}, Shape{1, 300, 1, 1, 48, 128, 0.0F, 40}}) {
    const int64_t width = s.heads * s.head_dim;
    const int64_t packed = width + 2 * s.kv_heads * s.head_dim;
    const Tensor qkv(type, data(s.samples * s.tokens * packed, 1, flavour));
    const std::vector<float> d_out = data(s.samples * s.tokens * width, 2, flavour);
    const std::vector<Sequence> sequences =
        sequences_of(std::vector<int64_t>(static_cast<size_t>(s.samples), s.tokens), 8);
    const DropoutKey key{.rate = s.rate, .seed = 5, .op = 6};
    Tensor out(type, s.samples * s.tokens * width);
    Tensor d_qkv(type, s.samples * s.tokens * packed);
    std::vector<float> lse(static_cast<size_t>(s.samples * s.heads * s.tokens));
    OverflowFlag overflow{0};
    kernels.attention_forward({.rows = rows_of(sequences),
                               .heads = s.heads,
                               .kv_heads = s.kv_heads,
                               .head_dim = s.head_dim,
                               .key_block = s.key_block,
                               .window = s.window,
                               .dropout = key,
                               .qkv = {qkv.data(), type},
                               .out = {out.data(), type},
                               .lse = lse.data(),
                               .overflow = &overflow});
    kernels.attention_backward({.rows = rows_of(sequences),
                                .heads = s.heads,
                                .kv_heads = s.kv_heads,
                                .head_dim = s.head_dim,
                                .key_block = s.key_block,
                                .window = s.window,
                                .dropout = key,
                                .qkv = {qkv.data(), type},
                                .out = {out.data(), type},
                                .lse = lse.data(),
                                .d_out = d_out.data(),
                                .d_qkv = {d_qkv.data(), type},
                                .overflow = &overflow});
    recorder.add(out);
    recorder.add(lse);
    recorder.add(d_qkv);
    recorder.add(overflow);
  }
}

void record_cross_entropy(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  constexpr int64_t kRows = 21;
  constexpr int64_t kVocab = 397;
  constexpr int64_t kPadded = 400;
  const std::vector<float> logits = data(kRows * kPadded, 1, flavour);
  std::vector<int32_t> targets;
  targets.reserve(kRows);
  for (int32_t i = 0; i < kRows; ++i)
    targets.push_back(i % 6 == 5 ? -1 : i * 18);
  const std::vector<int64_t> ends = uneven_ends(kPadded, 7);
  std::vector<int64_t> loss_sum(1, 0);
  Tensor d_logits(type, kRows * kPadded);
  OverflowFlag overflow{0};
  kernels.cross_entropy({.rows = kRows,
                         .vocab = kVocab,
                         .padded_vocab = kPadded,
                         .piece_ends = ends,
                         .logits = logits.data(),
                         .targets = targets.data(),
                         .loss_sum = loss_sum.data(),
                         .d_logits = {d_logits.data(), type},
                         .overflow = &overflow});
  recorder.add(loss_sum);
  recorder.add(d_logits);
  recorder.add(overflow);
}

TEST_P(EqualBitsTest, HeadNormAndRope) { expect_same_bits(record_heads); }
TEST_P(EqualBitsTest, Dropout) { expect_same_bits(record_dropout); }
TEST_P(EqualBitsTest, Embedding) { expect_same_bits(record_embedding); }
TEST_P(EqualBitsTest, Attention) { expect_same_bits(record_attention); }
TEST_P(EqualBitsTest, CrossEntropy) { expect_same_bits(record_cross_entropy); }

}  // namespace
}  // namespace trainyard::kernels::test
