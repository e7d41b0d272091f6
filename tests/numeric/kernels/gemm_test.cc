#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::test {
namespace {

struct Shape {
  int64_t m, n, k;
};
// Tails of every register tile (32 x 32, 8 x 48, 6 x 16, 4 x 16), single rows and columns, primes,
// and one that takes several blocks of the summed dimension with chains cut inside.
const Shape kShapes[] = {{1, 1, 1},   {1, 16, 2},  {7, 47, 31},   {8, 48, 64},
                         {9, 49, 65}, {13, 97, 3}, {37, 17, 129}, {65, 80, 96}};
constexpr Shape kLong = {11, 53, 4099};

struct Case {
  Shape shape;
  DType type;
  bool transpose_a, transpose_b;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const Shape& shape : kShapes) {
      for (const bool ta : {false, true}) {
        for (const bool tb : {false, true})
          all.push_back({shape, type, ta, tb});
      }
    }
    all.push_back({kLong, type, false, true});
    all.push_back({kLong, type, true, false});
  }
  return all;
}

std::string describe(const Case& c) {
  return std::string(name_of(c.type)) + " " + std::to_string(c.shape.m) + "x" +
         std::to_string(c.shape.n) + "x" + std::to_string(c.shape.k) +
         (c.transpose_a ? " A^T" : "") + (c.transpose_b ? " B^T" : "");
}

struct Operands {
  Tensor a, b;
  reference::Vector expected, magnitude;
  GemmParams params;

  explicit Operands(const Case& c)
      : a(c.type, normal(c.shape.m * c.shape.k, 1)), b(c.type, normal(c.shape.k * c.shape.n, 2)) {
    const auto [m, n, k] = c.shape;
    expected = reference::gemm(m, n, k, a.doubles(), c.transpose_a, b.doubles(), c.transpose_b);
    reference::Vector abs_a = a.doubles();
    reference::Vector abs_b = b.doubles();
    for (double& x : abs_a)
      x = std::abs(x);
    for (double& x : abs_b)
      x = std::abs(x);
    magnitude = reference::gemm(m, n, k, abs_a, c.transpose_a, abs_b, c.transpose_b);
    params.m = m;
    params.n = n;
    params.k = k;
    params.a = a.data();
    params.lda = c.transpose_a ? m : k;
    params.transpose_a = c.transpose_a;
    params.b = b.data();
    params.ldb = c.transpose_b ? k : n;
    params.transpose_b = c.transpose_b;
    params.input = c.type;
    params.ldc = n;
  }

  /// A chain of k fused multiply-adds errs by at most k 2^-24 sum|a b| (Higham 2002, section 3.1);
  /// random signs keep it below the square root of that in practice, which is what is asked.
  testing::AssertionResult close(const reference::Vector& actual, double quantum,
                                 double rounding = 0) const {
    const double unit = std::ldexp(4.0, -24) * std::sqrt(static_cast<double>(params.k) + 1);
    for (size_t i = 0; i < actual.size(); ++i) {
      const double bound = unit * magnitude[i] + quantum + rounding * std::abs(expected[i]);
      const double error = std::abs(actual[i] - expected[i]);
      if (!(error <= bound)) {
        return testing::AssertionFailure() << "element " << i << ": " << actual[i] << " expected "
                                           << expected[i] << " bound " << bound;
      }
    }
    return testing::AssertionSuccess();
  }
};

class GemmTest : public VariantTest {};
INSTANTIATE_TEST_SUITE_P(Isa, GemmTest, one_thread_each(), name_of_variant);

TEST_P(GemmTest, StoreMatchesDouble) {
  for (const Case& c : cases()) {
    Operands o(c);
    for (const DType c_type : {DType::kFloat32, DType::kBFloat16}) {
      Tensor out(c_type, normal(c.shape.m * c.shape.n, 3));
      o.params.c = out.data();
      o.params.c_type = c_type;
      kernels().gemm(o.params);
      EXPECT_TRUE(o.close(out.doubles(), 1e-30, c_type == DType::kBFloat16 ? 0.0040 : 0))
          << describe(c);
    }
  }
}

TEST_P(GemmTest, BiasIsAddedToEveryRow) {
  const Case c{{9, 49, 30}, DType::kFloat32, false, true};
  Operands o(c);
  const std::vector<float> bias = normal(49, 4);
  std::vector<float> without(9 * 49);
  std::vector<float> with(9 * 49);
  o.params.c = without.data();
  kernels().gemm(o.params);
  o.params.c = with.data();
  o.params.bias = bias.data();
  kernels().gemm(o.params);
  for (size_t i = 0; i < with.size(); ++i)
    EXPECT_EQ(with[i], without[i] + bias[i % 49]);
}

TEST_P(GemmTest, ExactRoundMatchesDouble) {
  for (const Case& c : cases()) {
    Operands o(c);
    for (const int64_t pieces : {1, 3, 12}) {
      const std::vector<int64_t> ends = uneven_ends(c.shape.k, pieces);
      OverflowFlag overflow{0};
      std::vector<float> out(static_cast<size_t>(c.shape.m * c.shape.n));
      o.params.output = GemmOutput::kExactRound;
      o.params.chain_ends = ends;
      o.params.overflow = &overflow;
      o.params.c = out.data();
      kernels().gemm(o.params);
      const double quantum = std::ldexp(static_cast<double>(ends.size()), -kActivationQuantumLog2);
      EXPECT_TRUE(o.close(doubles(out), quantum)) << describe(c) << " chains " << ends.size();
      EXPECT_EQ(overflow, 0U);
    }
  }
}

TEST_P(GemmTest, ExactAccumulateAddsToWhatIsThere) {
  for (const Case& c : cases()) {
    Operands o(c);
    const std::vector<int64_t> ends = uneven_ends(c.shape.k, 5);
    OverflowFlag overflow{0};
    constexpr int kQuantum = 44;
    std::vector<int64_t> out(static_cast<size_t>(c.shape.m * c.shape.n), int64_t{3} << kQuantum);
    o.params.output = GemmOutput::kExactAccumulate;
    o.params.quantum_log2 = kQuantum;
    o.params.chain_ends = ends;
    o.params.overflow = &overflow;
    o.params.c = out.data();
    kernels().gemm(o.params);
    kernels().gemm(o.params);
    reference::Vector half = doubles(out, kQuantum);
    for (double& x : half)
      x = (x - 3) / 2;
    EXPECT_TRUE(o.close(half, std::ldexp(10.0, -kQuantum))) << describe(c);
    EXPECT_EQ(overflow, 0U);
  }
}

TEST_P(GemmTest, OverwriteIsAccumulateIntoZeros) {
  for (const Case& c : cases()) {
    Operands o(c);
    // Chains of one element to one that outlasts a block of the summed dimension.
    for (const int64_t chain : {int64_t{1}, int64_t{5}, int64_t{61}, int64_t{4000}}) {
      std::vector<int64_t> ends;
      for (int64_t end = chain; end < c.shape.k; end += chain)
        ends.push_back(end);
      ends.push_back(c.shape.k);
      OverflowFlag overflow{0};
      o.params.output = GemmOutput::kExactAccumulate;
      o.params.chain_ends = ends;
      o.params.overflow = &overflow;
      o.params.c_type = DType::kInt64;
      std::vector<int64_t> added(static_cast<size_t>(c.shape.m * c.shape.n), 0);
      o.params.c = added.data();
      o.params.overwrite = false;
      kernels().gemm(o.params);
      std::vector<int64_t> stored(added.size(), int64_t{0x123456789abcdef});
      o.params.c = stored.data();
      o.params.overwrite = true;
      kernels().gemm(o.params);
      EXPECT_EQ(stored, added) << describe(c) << " chains of " << chain;
    }
  }
}

// What is overwritten goes past the caches where it is large and whole lines are written: rows that
// begin lines, and rows that do not.
TEST_P(GemmTest, OverwritingALargeResultIsNoDifferent) {
  const Case c{{1024, 531, 5}, DType::kBFloat16, true, false};
  Operands o(c);
  const auto [m, n, k] = c.shape;
  OverflowFlag overflow{0};
  o.params.output = GemmOutput::kExactAccumulate;
  o.params.overflow = &overflow;
  o.params.c_type = DType::kInt64;
  for (const int64_t ldc : {int64_t{536}, int64_t{531}}) {
    constexpr size_t kLine = 8;  // int64 elements
    const auto count = static_cast<size_t>(m * ldc);
    const auto result = [&](int64_t before, bool overwrite) {
      std::vector<int64_t> memory(count + kLine, before);
      const size_t past = reinterpret_cast<uintptr_t>(memory.data()) / sizeof(int64_t) % kLine;
      int64_t* const c_line = memory.data() + (kLine - past) % kLine;
      o.params.c = c_line;
      o.params.ldc = ldc;
      o.params.overwrite = overwrite;
      kernels().gemm(o.params);
      return std::vector<int64_t>(c_line, c_line + count);
    };
    std::vector<int64_t> added = result(0, false);
    constexpr int64_t kBefore = 0x123456789abcdef;
    for (int64_t i = 0; i < m; ++i)
      std::fill(added.begin() + i * ldc + n, added.begin() + (i + 1) * ldc, kBefore);
    EXPECT_TRUE(result(kBefore, true) == added) << "rows " << ldc << " apart";
  }
}

TEST_P(GemmTest, WritesNothingBeyondItsColumns) {
  const Case c{{9, 17, 5}, DType::kFloat32, false, false};
  Operands o(c);
  constexpr int64_t kStride = 40;
  std::vector<float> out(9 * kStride, 7.0F);
  o.params.c = out.data();
  o.params.ldc = kStride;
  kernels().gemm(o.params);
  for (int64_t i = 0; i < 9; ++i) {
    for (int64_t j = 17; j < kStride; ++j)
      EXPECT_EQ(out[static_cast<size_t>(i * kStride + j)], 7.0F);
  }
}

TEST_P(GemmTest, EmptySumIsTheBias) {
  const std::vector<float> bias = normal(5, 1);
  std::vector<float> out(10, 9.0F);
  const float unused = 0;
  kernels().gemm({.m = 2,
                  .n = 5,
                  .k = 0,
                  .a = &unused,
                  .lda = 1,
                  .b = &unused,
                  .ldb = 5,
                  .bias = bias.data(),
                  .c = out.data(),
                  .ldc = 5});
  for (size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(out[i], bias[i % 5]);
}

TEST_P(GemmTest, PartialThatDoesNotFitSetsTheFlagAndAddsNothing) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0x1p30F}) {
    // Rows 0 and 1; only row 1 holds the bad element, in its second chain of two.
    std::vector<float> a = {1, 2, 3, 4, 1, 2, 3, bad};
    const std::vector<float> b(4, 1.0F);
    const std::vector<int64_t> ends = {2, 4};
    std::vector<int64_t> out(2, 0);
    OverflowFlag overflow{0};
    kernels().gemm({.m = 2,
                    .n = 1,
                    .k = 4,
                    .a = a.data(),
                    .lda = 4,
                    .b = b.data(),
                    .ldb = 1,
                    .chain_ends = ends,
                    .output = GemmOutput::kExactAccumulate,
                    .quantum_log2 = 32,
                    .c = out.data(),
                    .ldc = 1,
                    .overflow = &overflow});
    EXPECT_EQ(overflow, 1U) << bad;
    EXPECT_EQ(out[0], int64_t{10} << 32);
    EXPECT_EQ(out[1], int64_t{3} << 32);
  }
}

TEST_P(GemmTest, CountsItsOperations) {
  const Case c{{9, 17, 5}, DType::kFloat32, false, false};
  Operands o(c);
  std::vector<float> out(9 * 17);
  o.params.c = out.data();
  const int64_t before = kernels().counters().gemm_flops;
  kernels().gemm(o.params);
  EXPECT_EQ(kernels().counters().gemm_flops - before, 2 * 9 * 17 * 5);
}

}  // namespace
}  // namespace trainyard::kernels::test
