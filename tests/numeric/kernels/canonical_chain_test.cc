// The order in which a product adds up, element by element, against the definition written down
// once more (docs/concepts/canonical-numerics.md) with the generic fused multiply-add.

#include <array>

#include "kernels/cpu/op_table.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::test {
namespace {

constexpr int kLanes = 16;
using Lanes = std::array<float, kLanes>;

Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  Lanes y;
  op_table_of(Isa::kGeneric).fma16(a.data(), b.data(), c.data(), y.data());
  return y;
}
Lanes add(const Lanes& a, const Lanes& b) {
  Lanes ones;
  ones.fill(1);
  return fma(a, ones, b);  // exact product: one rounding, as an addition has
}

/// Elements k of a row of A against 16 columns of B, widened.
struct Terms {
  std::vector<Lanes> a, b;
};

Lanes chain_of_fmas(const Terms& t, size_t begin, size_t end, size_t step) {
  Lanes acc{};
  for (size_t k = begin; k < end; k += step)
    acc = fma(t.a[k], t.b[k], acc);
  return acc;
}

Lanes canonical(const Terms& t, DType type) {
  const CanonicalFloatMode mode;
  if (type == DType::kFloat32) return chain_of_fmas(t, 0, t.a.size(), 1);
  constexpr size_t kAtOnce = 32;
  Terms padded = t;
  padded.a.resize((t.a.size() + kAtOnce - 1) / kAtOnce * kAtOnce, Lanes{});
  padded.b.resize(padded.a.size(), Lanes{});
  Lanes acc{};
  for (size_t k = 0; k < padded.a.size(); k += kAtOnce) {
    acc = add(acc, add(chain_of_fmas(padded, k, k + kAtOnce, 2),
                       chain_of_fmas(padded, k + 1, k + kAtOnce, 2)));
  }
  return acc;
}

enum class Range { kOrdinary, kTiny };

/// Of random bits; tiny ones multiply to around the smallest normal number.
std::vector<float> elements(int64_t count, uint32_t seed, Range range) {
  std::mt19937 engine(seed);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) {
    const auto bits = static_cast<uint32_t>(engine());
    const uint32_t exponent = range == Range::kOrdinary ? 120U + bits % 8U : 60U + bits % 8U;
    v = std::bit_cast<float>((bits & 0x807F0000U) | (exponent << 23U));
  }
  return x;
}

struct Product {
  int64_t m, n, k;
  bool ta, tb;
  std::vector<float> a, b;

  /// Row i of A against 16 columns from j on; +0 beyond the last.
  Terms terms(int64_t i, int64_t j) const {
    Terms t{std::vector<Lanes>(static_cast<size_t>(k)),
            std::vector<Lanes>(static_cast<size_t>(k), Lanes{})};
    for (int64_t at = 0; at < k; ++at) {
      const auto s = static_cast<size_t>(at);
      t.a[s].fill(a[static_cast<size_t>(ta ? at * m + i : i * k + at)]);
      for (int64_t column = j; column < std::min(n, j + kLanes); ++column) {
        t.b[s][static_cast<size_t>(column - j)] =
            b[static_cast<size_t>(tb ? column * k + at : at * n + column)];
      }
    }
    return t;
  }
};

class CanonicalChainTest : public VariantTest {
 protected:
  std::vector<float> multiply(const Product& p, DType type) {
    const Tensor a(type, p.a);
    const Tensor b(type, p.b);
    std::vector<float> c(static_cast<size_t>(p.m * p.n));
    kernels().gemm({.m = p.m,
                    .n = p.n,
                    .k = p.k,
                    .a = a.data(),
                    .lda = p.ta ? p.m : p.k,
                    .transpose_a = p.ta,
                    .b = b.data(),
                    .ldb = p.tb ? p.k : p.n,
                    .transpose_b = p.tb,
                    .input = type,
                    .c = c.data(),
                    .ldc = p.n});
    return c;
  }

  void expect_order(const Product& p, DType type) {
    const std::vector<float> c = multiply(p, type);
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; j += kLanes) {
        const Lanes expected = canonical(p.terms(i, j), type);
        const auto bytes = static_cast<size_t>(std::min<int64_t>(kLanes, p.n - j)) * sizeof(float);
        ASSERT_EQ(std::memcmp(&c[static_cast<size_t>(i * p.n + j)], expected.data(), bytes), 0)
            << name_of(type) << " " << p.m << "x" << p.n << "x" << p.k << " row " << i
            << ", one of the columns from " << j << " on";
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, CanonicalChainTest, one_thread_each(), name_of_variant);

TEST_P(CanonicalChainTest, ProductsAddUpInTheOrderWrittenDown) {
  // The last is cut by blocks of the caches.
  const std::vector<Product> shapes = {
      {33, 49, 1, false, false, {}, {}},  {33, 49, 2, true, false, {}, {}},
      {33, 49, 3, false, true, {}, {}},   {33, 49, 30, true, true, {}, {}},
      {33, 49, 31, false, false, {}, {}}, {33, 49, 32, true, false, {}, {}},
      {33, 49, 33, false, true, {}, {}},  {33, 49, 64, true, true, {}, {}},
      {33, 49, 95, false, true, {}, {}},  {33, 49, 129, true, false, {}, {}},
      {3, 17, 3331, false, true, {}, {}}};
  for (const Range range : {Range::kOrdinary, Range::kTiny}) {
    for (Product p : shapes) {
      p.a = elements(p.m * p.k, 1, range);
      p.b = elements(p.k * p.n, 2, range);
      expect_order(p, DType::kFloat32);
      expect_order(p, DType::kBFloat16);
    }
  }
}

// An accumulator and both chains of the last, short stretch are -0, which only results too small
// for a normal number become: what is padded makes the sum +0.
TEST_P(CanonicalChainTest, PaddingDecidesTheSignOfANothing) {
  constexpr int64_t kLength = 68;
  Product p{1, kLanes, kLength, false, true, {}, {}};
  p.a.resize(kLength);
  p.b.resize(kLength * kLanes);
  const auto set = [&p](size_t k, float a, float b) {
    p.a[k] = a;
    for (size_t column = 0; column < kLanes; ++column)
      p.b[column * kLength + k] = b;
  };
  set(0, 0x1.8p-63F, 0x1p-63F);
  set(32, -0x1.Cp-63F, 0x1p-63F);
  for (size_t k = 64; k < kLength; ++k)
    set(k, -0x1p-70F, 0x1p-70F);
  expect_order(p, DType::kBFloat16);
  EXPECT_FALSE(std::signbit(multiply(p, DType::kBFloat16)[0]));
}

}  // namespace
}  // namespace trainyard::kernels::test
