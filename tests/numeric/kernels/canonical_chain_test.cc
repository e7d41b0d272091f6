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

class CanonicalChainTest : public VariantTest {
 protected:
  void expect_order(DType type, int64_t m, int64_t n, int64_t k, bool ta, bool tb, Range range) {
    const std::vector<float> a = elements(m * k, 1, range);
    const std::vector<float> b = elements(k * n, 2, range);
    const Tensor a_input(type, a);
    const Tensor b_input(type, b);
    std::vector<float> c(static_cast<size_t>(m * n));
    kernels().gemm({.m = m,
                    .n = n,
                    .k = k,
                    .a = a_input.data(),
                    .lda = ta ? m : k,
                    .transpose_a = ta,
                    .b = b_input.data(),
                    .ldb = tb ? k : n,
                    .transpose_b = tb,
                    .input = type,
                    .c = c.data(),
                    .ldc = n});
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; j += kLanes) {
        const auto lanes = static_cast<size_t>(std::min<int64_t>(kLanes, n - j));
        Terms t{std::vector<Lanes>(static_cast<size_t>(k)),
                std::vector<Lanes>(static_cast<size_t>(k), Lanes{})};
        for (int64_t at = 0; at < k; ++at) {
          const auto s = static_cast<size_t>(at);
          t.a[s].fill(a[static_cast<size_t>(ta ? at * m + i : i * k + at)]);
          for (size_t lane = 0; lane < lanes; ++lane) {
            const int64_t column = j + static_cast<int64_t>(lane);
            t.b[s][lane] = b[static_cast<size_t>(tb ? column * k + at : at * n + column)];
          }
        }
        const Lanes expected = canonical(t, type);
        for (size_t lane = 0; lane < lanes; ++lane) {
          ASSERT_EQ(std::bit_cast<uint32_t>(c[static_cast<size_t>(i * n + j) + lane]),
                    std::bit_cast<uint32_t>(expected[lane]))
              << name_of(type) << " " << m << "x" << n << "x" << k << " row " << i << " column "
              << j + static_cast<int64_t>(lane);
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, CanonicalChainTest, one_thread_each(), name_of_variant);

TEST_P(CanonicalChainTest, ProductsAddUpInTheOrderWrittenDown) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const Range range : {Range::kOrdinary, Range::kTiny}) {
      for (const int64_t k : {1, 2, 3, 30, 31, 32, 33, 64, 95, 129})
        expect_order(type, 33, 49, k, k % 2 == 0, k % 3 == 0, range);
      expect_order(type, 3, 17, 3331, false, true, range);  // cut by blocks of the caches
    }
  }
}

}  // namespace
}  // namespace trainyard::kernels::test
