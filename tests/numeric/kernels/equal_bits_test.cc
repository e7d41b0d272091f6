// Products, norms, activations and the update: the same bits on every instruction set and for any
// number of threads.

#include "tests/numeric/kernels/equal_bits.h"

namespace trainyard::kernels::test {
namespace {

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
                                .y = {y.data(), type},
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
                           .dy = {typed.data(), type},
                           .stride = width,
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
  kernels.gelu_forward({.count = kCount, .x = {x.data(), type}, .y = {y.data(), type}});
  kernels.gelu_backward(
      {.count = kCount, .dy = dy.data(), .x = {x.data(), type}, .dx = {dx.data(), type}});
  recorder.add(y);
  recorder.add(dx);
}

void record_rms_norm(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  constexpr int64_t kRows = 57;
  const std::vector<Sequence> sequences = sequences_of({20, 37});
  for (const int64_t width : {int64_t{16}, int64_t{301}}) {
    const std::vector<float> x = data(kRows * width, 1, flavour);
    const std::vector<float> gamma = data(width, 2, flavour);
    const std::vector<float> dy = data(kRows * width, 3, flavour);
    Tensor y(type, kRows * width);
    std::vector<float> rstd(kRows);
    std::vector<float> dx = data(kRows * width, 4, flavour);
    std::vector<int64_t> dgamma(static_cast<size_t>(width), 0);
    OverflowFlag overflow{0};
    kernels.layer_norm_forward({.rows = kRows,
                                .width = width,
                                .centred = false,
                                .x = x.data(),
                                .gamma = gamma.data(),
                                .y = {y.data(), type},
                                .rstd = rstd.data()});
    kernels.layer_norm_backward_input({.rows = kRows,
                                       .width = width,
                                       .centred = false,
                                       .dy = dy.data(),
                                       .x = x.data(),
                                       .gamma = gamma.data(),
                                       .rstd = rstd.data(),
                                       .dx = dx.data()});
    kernels.layer_norm_backward_weight({.rows = kRows,
                                        .width = width,
                                        .centred = false,
                                        .dy = dy.data(),
                                        .x = x.data(),
                                        .rstd = rstd.data(),
                                        .grains = {sequences, 16},
                                        .quantum_log2 = 38,
                                        .partials = 5,
                                        .dgamma = dgamma.data(),
                                        .overflow = &overflow});
    recorder.add(y);
    recorder.add(rstd);
    recorder.add(dx);
    recorder.add(dgamma);
    recorder.add(overflow);
  }
}

void record_gated(KernelSet& kernels, Flavour flavour, DType type, Recorder& recorder) {
  constexpr int64_t kRows = 33;
  constexpr int64_t kWidth = 173;
  const Tensor x(type, data(2 * kRows * kWidth, 1, flavour));
  const std::vector<float> dy = data(kRows * kWidth, 2, flavour);
  for (const Activation activation : {Activation::kSilu, Activation::kGelu}) {
    Tensor y(type, kRows * kWidth);
    Tensor dx(type, 2 * kRows * kWidth);
    kernels.gated_forward({.rows = kRows,
                           .width = kWidth,
                           .activation = activation,
                           .x = {x.data(), type},
                           .y = {y.data(), type}});
    kernels.gated_backward({.rows = kRows,
                            .width = kWidth,
                            .activation = activation,
                            .dy = dy.data(),
                            .x = {x.data(), type},
                            .dx = {dx.data(), type}});
    recorder.add(y);
    recorder.add(dx);
  }
}

void record_optimizer(KernelSet& kernels, Flavour flavour, DType, Recorder& recorder) {
  const int64_t count = 131072 + 1234;
  std::mt19937_64 engine(6);
  std::vector<int64_t> sums(static_cast<size_t>(count));
  for (int64_t& x : sums)  // half of the special ones are beyond what a square may be
    x = static_cast<int64_t>(engine()) >> (engine() % 64);
  const StepGradient gradient{
      .sums = sums.data(),
      .scale = std::ldexp(1.0, flavour == Flavour::kPlain ? -52 : -40) / 1000.0};
  std::vector<int64_t> limbs(kSquareLimbs);
  OverflowFlag overflow{0};
  std::vector<float> rounded(static_cast<size_t>(count));
  kernels.sum_of_squares({.count = count,
                          .gradient = gradient,
                          .rounded = rounded.data(),
                          .limbs = limbs.data(),
                          .overflow = &overflow});
  recorder.add(rounded);
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
  const AdamW update{.count = count,
                     .weight_decay = 0.1F,
                     .gradient = gradient,
                     .parameter = p.data(),
                     .m = m.data(),
                     .v = v.data(),
                     .bf16_copy = updated.data(),
                     .scalars = &scalars};
  kernels.adamw({&update, 1});
  std::vector<uint16_t> bf16(static_cast<size_t>(count));
  kernels.cast_to_bf16(p.data(), bf16.data(), count);
  EXPECT_EQ(updated, bf16) << "AdamW's own copy is the cast of what it wrote";
  recorder.add(p);
  recorder.add(m);
  recorder.add(v);
  recorder.add(bf16);
}

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
TEST_P(EqualBitsTest, RmsNorm) { expect_same_bits(record_rms_norm); }
TEST_P(EqualBitsTest, GatedActivation) { expect_same_bits(record_gated); }
TEST_P(EqualBitsTest, Gelu) { expect_same_bits(record_gelu); }
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
  kernels().attention_forward({.heads = 1, .kv_heads = 1, .head_dim = 8});
  kernels().cross_entropy({.rows = 0, .vocab = 4, .padded_vocab = 4, .loss_sum = &loss});
  const AdamW nothing{.scalars = &scalars};
  kernels().adamw({&nothing, 1});
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
