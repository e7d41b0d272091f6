// Every operation gives the same bits on every instruction set and for any number of threads, also
// for inputs that hold denormals, huge values, negative zeros, infinities and NaN.

#include <functional>

#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::test {
namespace {

/// Collects outputs; a NaN is a NaN whatever its payload and sign, which no rule fixes.
class Recorder {
 public:
  void add(const std::vector<float>& x) {
    for (const float v : x) {
      words_.push_back(std::isnan(v) ? 0x7FC00000U : std::bit_cast<uint32_t>(v));
    }
  }
  void add(const std::vector<uint16_t>& x) {
    for (const uint16_t v : x)
      words_.push_back(std::isnan(from_bf16(v)) ? 0x7FC0U : v);
  }
  void add(const Tensor& x) {
    add(x.f32);
    add(x.bf16);
  }
  void add(const std::vector<int64_t>& x) {
    for (const int64_t v : x)
      words_.push_back(static_cast<uint64_t>(v));
  }
  void add(const OverflowFlag& flag) { words_.push_back(flag); }
  const std::vector<uint64_t>& words() const { return words_; }

 private:
  std::vector<uint64_t> words_;
};

enum class Flavour { kPlain, kSpecial };

/// Normal deviates; in the special flavour about one in sixteen is replaced by an extreme.
std::vector<float> data(int64_t count, uint32_t seed, Flavour flavour) {
  std::vector<float> x = normal(count, seed);
  if (flavour == Flavour::kPlain) return x;
  const float extremes[] = {0.0F,
                            -0.0F,
                            1e-40F,
                            -3e-39F,
                            1.2e-38F,
                            -1e-30F,
                            1e19F,
                            -3e38F,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  std::mt19937 engine(seed + 1);
  for (float& v : x) {
    // NaN and infinity are rare, or nothing else would be left to compare.
    const uint32_t draw = engine() % 4096;
    if (draw < 256) v = extremes[draw % 7];
    if (draw == 4095) v = extremes[7 + engine() % 3];
  }
  return x;
}

using Case = std::function<void(KernelSet&, Flavour, DType, Recorder&)>;

void record_gemm(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  struct Shape {
    int64_t m, n, k;
    bool ta, tb;
  };
  for (const Shape& s : {Shape{19, 67, 45, false, true}, Shape{50, 33, 64, true, false},
                         Shape{9, 100, 31, true, true}, Shape{16, 112, 3501, false, false},
                         Shape{97, 48, 160, true, true}}) {
    const Tensor a(type, data(s.m * s.k, 1, flavour));
    const Tensor b(type, data(s.k * s.n, 2, flavour));
    const std::vector<float> bias = data(s.n, 3, flavour);
    OverflowFlag overflow{0};
    GemmParams p{.m = s.m,
                 .n = s.n,
                 .k = s.k,
                 .a = a.data(),
                 .lda = s.ta ? s.m : s.k,
                 .transpose_a = s.ta,
                 .b = b.data(),
                 .ldb = s.tb ? s.k : s.n,
                 .transpose_b = s.tb,
                 .input = type,
                 .bias = bias.data(),
                 .ldc = s.n,
                 .overflow = &overflow};
    for (const DType c_type : {DType::kFloat32, DType::kBFloat16}) {
      Tensor c(c_type, s.m * s.n);
      p.c = c.data();
      p.c_type = c_type;
      kernels.gemm(p);
      recorder.add(c);
    }
    const std::vector<int64_t> ends = uneven_ends(s.k, 6);
    Tensor rounded(DType::kFloat32, s.m * s.n);
    p.output = GemmOutput::kExactRound;
    p.chain_ends = ends;
    p.c_type = DType::kFloat32;
    p.c = rounded.data();
    kernels.gemm(p);
    recorder.add(rounded);
    std::vector<int64_t> sums(static_cast<size_t>(s.m * s.n), 5);
    p.output = GemmOutput::kExactAccumulate;
    p.bias = nullptr;
    p.c = sums.data();
    kernels.gemm(p);
    recorder.add(sums);
    recorder.add(overflow);
  }
}

void record_layer_norm(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  constexpr int64_t kRows = 23;
  for (const int64_t width : {37, 192}) {
    const std::vector<float> x = data(kRows * width, 1, flavour);
    const std::vector<float> dy = data(kRows * width, 2, flavour);
    const std::vector<float> gamma = data(width, 3, flavour);
    const std::vector<float> beta = data(width, 4, flavour);
    std::vector<float> mean(kRows);
    std::vector<float> rstd(kRows);
    Tensor y(type, kRows * width);
    kernels.layer_norm_forward({.rows = kRows,
                                .width = width,
                                .x = x.data(),
                                .gamma = gamma.data(),
                                .beta = beta.data(),
                                .y = y.data(),
                                .y_type = type,
                                .mean = mean.data(),
                                .rstd = rstd.data()});
    std::vector<float> dx = data(kRows * width, 5, flavour);
    kernels.layer_norm_backward_input({.rows = kRows,
                                       .width = width,
                                       .dy = dy.data(),
                                       .x = x.data(),
                                       .gamma = gamma.data(),
                                       .mean = mean.data(),
                                       .rstd = rstd.data(),
                                       .dx = dx.data()});
    std::vector<int64_t> dgamma(static_cast<size_t>(width), 0);
    std::vector<int64_t> dbeta = dgamma;
    OverflowFlag overflow{0};
    const std::vector<Sequence> sequences = sequences_up_to(uneven_ends(kRows, 4));
    kernels.layer_norm_backward_weight({.rows = kRows,
                                        .width = width,
                                        .dy = dy.data(),
                                        .x = x.data(),
                                        .mean = mean.data(),
                                        .rstd = rstd.data(),
                                        .grains = {sequences, kRows},
                                        .quantum_log2 = 38,
                                        .dgamma = dgamma.data(),
                                        .dbeta = dbeta.data(),
                                        .overflow = &overflow});
    const Tensor typed(type, dy);
    std::vector<int64_t> d_bias(static_cast<size_t>(width), 0);
    kernels.bias_backward({.rows = kRows,
                           .width = width,
                           .dy = typed.data(),
                           .stride = width,
                           .dy_type = type,
                           .grains = {sequences, kRows},
                           .quantum_log2 = 38,
                           .d_bias = d_bias.data(),
                           .overflow = &overflow});
    recorder.add(y);
    recorder.add(mean);
    recorder.add(rstd);
    recorder.add(dx);
    recorder.add(dgamma);
    recorder.add(dbeta);
    recorder.add(d_bias);
    recorder.add(overflow);
  }
}

void record_gelu(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  constexpr int64_t kCount = 5003;
  std::vector<float> values = data(kCount, 1, flavour);
  for (float& x : values)
    x *= 3;
  const Tensor x(type, values);
  const std::vector<float> dy = data(kCount, 2, flavour);
  Tensor y(type, kCount);
  Tensor dx(type, kCount);
  kernels.gelu_forward({.count = kCount, .x = x.data(), .y = y.data(), .type = type});
  kernels.gelu_backward(
      {.count = kCount, .dy = dy.data(), .x = x.data(), .dx = dx.data(), .type = type});
  recorder.add(y);
  recorder.add(dx);
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
                            .dx = dx.data(),
                            .dx_type = type});
  recorder.add(y);
  recorder.add(dx);
}

void record_embedding(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kWidth = 133;
  std::vector<int32_t> tokens;
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
                             .type = type,
                             .wte = wte.data(),
                             .wpe = wpe.data(),
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
    int64_t samples, tokens, heads, head_dim, key_block;
    float rate;
  };
  for (const Shape& s : {Shape{2, 43, 3, 22, 128, 0.0F}, Shape{1, 75, 2, 64, 24, 0.15F},
                         Shape{1, 300, 1, 48, 128, 0.0F}}) {
    const int64_t width = s.heads * s.head_dim;
    const Tensor qkv(type, data(s.samples * s.tokens * 3 * width, 1, flavour));
    const std::vector<float> d_out = data(s.samples * s.tokens * width, 2, flavour);
    const std::vector<Sequence> sequences =
        sequences_of(std::vector<int64_t>(static_cast<size_t>(s.samples), s.tokens), 8);
    const DropoutKey key{.rate = s.rate, .seed = 5, .op = 6};
    Tensor out(type, s.samples * s.tokens * width);
    Tensor d_qkv(type, s.samples * s.tokens * 3 * width);
    std::vector<float> lse(static_cast<size_t>(s.samples * s.heads * s.tokens));
    OverflowFlag overflow{0};
    kernels.attention_forward({.rows = rows_of(sequences),
                               .heads = s.heads,
                               .head_dim = s.head_dim,
                               .key_block = s.key_block,
                               .dropout = key,
                               .type = type,
                               .qkv = qkv.data(),
                               .out = out.data(),
                               .lse = lse.data(),
                               .overflow = &overflow});
    kernels.attention_backward({.rows = rows_of(sequences),
                                .heads = s.heads,
                                .head_dim = s.head_dim,
                                .key_block = s.key_block,
                                .dropout = key,
                                .type = type,
                                .qkv = qkv.data(),
                                .out = out.data(),
                                .lse = lse.data(),
                                .d_out = d_out.data(),
                                .d_qkv = d_qkv.data(),
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
                         .d_logits = d_logits.data(),
                         .d_type = type,
                         .overflow = &overflow});
  recorder.add(loss_sum);
  recorder.add(d_logits);
  recorder.add(overflow);
}

void record_optimizer(KernelSet& kernels, Flavour flavour, DType, Recorder& recorder) {
  const int64_t count = 131072 + 1234;
  std::mt19937_64 engine(6);
  std::vector<int64_t> sums(static_cast<size_t>(count));
  for (int64_t& x : sums)  // half of the special ones are beyond what a square may be
    x = static_cast<int64_t>(engine()) >> (engine() % 64);
  const ExactGradient gradient{sums.data(),
                               std::ldexp(1.0, flavour == Flavour::kPlain ? -52 : -40) / 1000.0};
  std::vector<int64_t> limbs(kSquareLimbs);
  OverflowFlag overflow{0};
  kernels.sum_of_squares(
      {.count = count, .gradient = gradient, .limbs = limbs.data(), .overflow = &overflow});
  // Pieces of one call are carried each by itself, and their number follows the threads.
  for (int k = 0; k + 1 < kSquareLimbs; ++k) {
    limbs[static_cast<size_t>(k) + 1] += limbs[static_cast<size_t>(k)] >> kSquareLimbBits;
    limbs[static_cast<size_t>(k)] &= (int64_t{1} << kSquareLimbBits) - 1;
  }
  // The limit may be reached by a piece or by all together.
  recorder.add(std::vector<int64_t>{overflow != 0 || limbs.back() >= kSquareLimit});
  if (flavour == Flavour::kPlain) recorder.add(limbs);
  std::vector<float> p = data(count, 2, flavour);
  std::vector<float> m = data(count, 3, flavour);
  std::vector<float> v = data(count, 4, flavour);
  const OptimizerScalars scalars{.gradient_norm = 1,
                                 .clip_scale = 0.7F,
                                 .learning_rate = 1e-3F,
                                 .bias_correction1 = 10,
                                 .bias_correction2 = 20,
                                 .skip = 0};
  std::vector<uint16_t> updated(static_cast<size_t>(count));
  kernels.adamw({.count = count,
                 .weight_decay = 0.1F,
                 .gradient = gradient,
                 .parameter = p.data(),
                 .m = m.data(),
                 .v = v.data(),
                 .bf16_copy = updated.data(),
                 .scalars = &scalars});
  std::vector<uint16_t> bf16(static_cast<size_t>(count));
  kernels.cast_to_bf16(p.data(), bf16.data(), count);
  EXPECT_EQ(updated, bf16) << "AdamW's own copy is the cast of what it wrote";
  recorder.add(p);
  recorder.add(m);
  recorder.add(v);
  recorder.add(bf16);
}

class EqualBitsTest : public VariantTest {
 protected:
  void expect_same_bits(const Case& record) {
    for (const Flavour flavour : {Flavour::kPlain, Flavour::kSpecial}) {
      for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
        Kernels generic(Isa::kGeneric, 1);
        Recorder expected;
        Recorder actual;
        record(*generic, flavour, type, expected);
        record(kernels(), flavour, type, actual);
        ASSERT_EQ(actual.words().size(), expected.words().size());
        for (size_t i = 0; i < actual.words().size(); ++i) {
          ASSERT_EQ(actual.words()[i], expected.words()[i])
              << "word " << i << " of " << actual.words().size() << ", " << name_of(type)
              << (flavour == Flavour::kSpecial ? ", special values" : "");
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, EqualBitsTest,
                         testing::ValuesIn(runnable({{Isa::kGeneric, 3},
                                                     {Isa::kAvx2, 1},
                                                     {Isa::kAvx2, 2},
                                                     {Isa::kAvx512, 1},
                                                     {Isa::kAvx512, 2},
                                                     {Isa::kAvx512, 3},
                                                     {Isa::kAvx512Bf16, 1},
                                                     {Isa::kAvx512Bf16, 2},
                                                     {Isa::kAvx512Bf16, 3},
                                                     {Isa::kAmx, 1},
                                                     {Isa::kAmx, 3}})),
                         name_of_variant);

TEST_P(EqualBitsTest, Gemm) { expect_same_bits(record_gemm); }
TEST_P(EqualBitsTest, LayerNormAndBias) { expect_same_bits(record_layer_norm); }
TEST_P(EqualBitsTest, Gelu) { expect_same_bits(record_gelu); }
TEST_P(EqualBitsTest, Dropout) { expect_same_bits(record_dropout); }
TEST_P(EqualBitsTest, Embedding) { expect_same_bits(record_embedding); }
TEST_P(EqualBitsTest, Attention) { expect_same_bits(record_attention); }
TEST_P(EqualBitsTest, CrossEntropy) { expect_same_bits(record_cross_entropy); }
TEST_P(EqualBitsTest, Optimizer) { expect_same_bits(record_optimizer); }

TEST_P(EqualBitsTest, NothingToDoIsDone) {
  const OptimizerScalars scalars{};
  int64_t loss = 3;
  kernels().gemm({.m = 0, .n = 5, .k = 5});
  kernels().layer_norm_forward({.rows = 0, .width = 16});
  kernels().bias_backward({.rows = 0, .width = 0});
  kernels().gelu_forward({});
  kernels().dropout_add({});
  kernels().embedding_forward({.width = 8});
  kernels().attention_forward({.heads = 1, .head_dim = 8});
  kernels().cross_entropy({.rows = 0, .vocab = 4, .padded_vocab = 4, .loss_sum = &loss});
  kernels().adamw({.scalars = &scalars});
  kernels().sum_of_squares({});
  kernels().clear(&loss, 0);
  EXPECT_EQ(loss, 3);
}

TEST_P(EqualBitsTest, CallersFloatModeIsPutBack) {
  volatile float tiny = 1e-38F;
  std::vector<uint16_t> y(16);
  const std::vector<float> x(16, 1.0F);
  kernels().cast_to_bf16(x.data(), y.data(), 16);
  const float half = tiny * 0.5F;
  EXPECT_GT(half, 0.0F);  // a denormal: the test's own thread keeps its mode
}

}  // namespace
}  // namespace trainyard::kernels::test
