#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::test {
namespace {

struct Case {
  int64_t samples, tokens, heads, head_dim, key_block;
  float rate;
  int64_t group = 1;   // query heads of a key and value head
  int64_t window = 0;  // keys that a query sees; 0: no bound
  int64_t kv_heads() const { return heads / group; }
};
const Case kCases[] = {
    {1, 1, 1, 2, 128, 0},
    {2, 17, 2, 16, 128, 0},
    {1, 50, 3, 10, 16, 0},
    {2, 61, 1, 32, 20, 0.2F},
    {1, 97, 2, 64, 48, 0},
    {1, 130, 1, 48, 128, 0.1F},
    // Keys of a block that begins inside a counter's four.
    {1, 21, 1, 16, 1, 0.3F},
    {1, 77, 2, 16, 30, 0.3F},
    {1, 150, 1, 16, 71, 0.3F},
    {2, 61, 6, 16, 20, 0, 3},
    {1, 97, 4, 24, 48, 0.2F, 4},
    // Windows within a block and over several, of one key, and of all but one.
    {2, 61, 2, 16, 20, 0, 1, 7},
    {1, 97, 4, 24, 48, 0.2F, 4, 50},
    {1, 130, 2, 32, 16, 0, 2, 40},
    {1, 50, 1, 10, 16, 0, 1, 1},
    {1, 50, 1, 16, 128, 0.1F, 1, 49},
    {1, 150, 1, 16, 71, 0, 1, 71},
    {1, 40, 1, 16, 1, 0, 1, 3},
};

class AttentionTest : public VariantTest {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest, one_thread_each(), name_of_variant);

struct Problem {
  Case c;
  DType type;
  int64_t width;
  int64_t packed;
  Tensor qkv;
  std::vector<float> d_out;
  std::vector<Sequence> sequences;
  DropoutKey key;

  Problem(const Case& shape, DType element_type)
      : c(shape),
        type(element_type),
        width(c.heads * c.head_dim),
        packed(width + 2 * c.kv_heads() * c.head_dim),
        qkv(type, normal(c.samples * c.tokens * packed, 1)),
        d_out(normal(c.samples * c.tokens * width, 2)),
        sequences(
            sequences_of(std::vector<int64_t>(static_cast<size_t>(c.samples), c.tokens), 1000)),
        key{.rate = c.rate, .seed = 11, .op = 5} {}

  reference::AttentionShape shape() const {
    return {c.tokens, c.heads, c.head_dim, c.kv_heads(), true, c.window};
  }
  reference::AttentionFactor factor(int64_t sample) const {
    return [this, sample](int64_t head, int64_t query, int64_t k) {
      return reference::dropout_factor(key, sequences[static_cast<size_t>(sample)].ordinal,
                                       static_cast<uint32_t>(k), static_cast<uint32_t>(query),
                                       static_cast<uint32_t>(head + 3));
    };
  }
  reference::Vector part(const reference::Vector& all, int64_t sample, int64_t per_sample) const {
    return {all.begin() + sample * per_sample, all.begin() + (sample + 1) * per_sample};
  }

  AttentionForward forward(Tensor& out, std::vector<float>& lse, OverflowFlag& overflow) const {
    return {.rows = rows_of(sequences),
            .heads = c.heads,
            .kv_heads = c.kv_heads(),
            .head_dim = c.head_dim,
            .head_offset = 3,
            .key_block = c.key_block,
            .window = c.window,
            .dropout = key,
            .qkv = {qkv.data(), type},
            .out = {out.data(), type},
            .lse = lse.data(),
            .overflow = &overflow};
  }
};

/// Of the magnitudes of an element's terms. bf16 has 2^-9 relative error per rounding; P, dS, dO,
/// out and the result are rounded.
double tolerance(DType type) { return type == DType::kFloat32 ? 4e-6 : 5 * 0x1p-9; }

TEST_P(AttentionTest, MatchesDouble) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const Case& c : kCases) {
      const Problem p(c, type);
      Tensor out(type, c.samples * c.tokens * p.width);
      Tensor d_qkv(type, c.samples * c.tokens * p.packed);
      std::vector<float> lse(static_cast<size_t>(c.samples * c.heads * c.tokens));
      OverflowFlag overflow{0};
      kernels().attention_forward(p.forward(out, lse, overflow));
      kernels().attention_backward({.rows = rows_of(p.sequences),
                                    .heads = c.heads,
                                    .kv_heads = c.kv_heads(),
                                    .head_dim = c.head_dim,
                                    .head_offset = 3,
                                    .key_block = c.key_block,
                                    .window = c.window,
                                    .dropout = p.key,
                                    .qkv = {p.qkv.data(), type},
                                    .out = {out.data(), type},
                                    .lse = lse.data(),
                                    .d_out = p.d_out.data(),
                                    .d_qkv = {d_qkv.data(), type},
                                    .overflow = &overflow});
      EXPECT_EQ(overflow, 0U);
      const double e = tolerance(type);
      for (int64_t s = 0; s < c.samples; ++s) {
        const auto where = std::string(name_of(type)) + " T " + std::to_string(c.tokens) +
                           " window " + std::to_string(c.window) + " sample " + std::to_string(s);
        const int64_t per_out = c.tokens * p.width;
        const reference::Vector x = p.part(p.qkv.doubles(), s, c.tokens * p.packed);
        const auto expected = reference::attention(p.shape(), x, p.factor(s));
        const reference::Vector d_out = p.part(doubles(p.d_out), s, per_out);
        const auto terms = reference::attention_magnitudes(p.shape(), x, d_out, p.factor(s));
        EXPECT_TRUE(within(p.part(out.doubles(), s, per_out), expected.out, terms.out, e)) << where;
        EXPECT_TRUE(near(p.part(doubles(lse), s, c.heads * c.tokens), expected.lse, e, e)) << where;
        const auto gradient = reference::attention_backward(p.shape(), x, d_out, p.factor(s));
        EXPECT_TRUE(
            within(p.part(d_qkv.doubles(), s, c.tokens * p.packed), gradient, terms.d_qkv, e))
            << where;
      }
    }
  }
}

TEST_P(AttentionTest, FutureTokensDoNotMatter) {
  const Problem p(kCases[2], DType::kFloat32);
  Problem changed = p;
  const int64_t kept = 33;
  for (size_t i = static_cast<size_t>(kept * p.packed); i < changed.qkv.f32.size(); ++i) {
    changed.qkv.f32[i] *= -3.0F;
  }
  OverflowFlag overflow{0};
  Tensor out[2] = {{DType::kFloat32, p.c.tokens * p.width},
                   {DType::kFloat32, p.c.tokens * p.width}};
  std::vector<float> lse(static_cast<size_t>(p.c.heads * p.c.tokens));
  kernels().attention_forward(p.forward(out[0], lse, overflow));
  kernels().attention_forward(changed.forward(out[1], lse, overflow));
  for (size_t i = 0; i < static_cast<size_t>(kept * p.width); ++i) {
    ASSERT_EQ(out[0].f32[i], out[1].f32[i]) << i;
  }
}

TEST_P(AttentionTest, AWindowOfTheWholeSequenceChangesNoBit) {
  const Problem p(kCases[4], DType::kFloat32);
  OverflowFlag overflow{0};
  std::vector<Tensor> out;
  for (const int64_t window : {int64_t{0}, p.c.tokens, p.c.tokens + 1}) {
    out.emplace_back(DType::kFloat32, p.c.tokens * p.width);
    std::vector<float> lse(static_cast<size_t>(p.c.heads * p.c.tokens));
    AttentionForward forward = p.forward(out.back(), lse, overflow);
    forward.window = window;
    kernels().attention_forward(forward);
  }
  EXPECT_EQ(out[0].f32, out[1].f32);
  EXPECT_EQ(out[0].f32, out[2].f32);
}

TEST_P(AttentionTest, TokensBeforeTheWindowDoNotMatter) {
  const Problem p(kCases[11], DType::kFloat32);
  Problem changed = p;
  const int64_t first = 30;  // of the second half, whose windows begin here
  for (size_t i = 0; i < static_cast<size_t>(first * p.packed); ++i)
    changed.qkv.f32[i] *= -3.0F;
  OverflowFlag overflow{0};
  const int64_t rows = p.c.samples * p.c.tokens;
  Tensor out[2] = {{DType::kFloat32, rows * p.width}, {DType::kFloat32, rows * p.width}};
  std::vector<float> lse(static_cast<size_t>(p.c.heads * rows));
  kernels().attention_forward(p.forward(out[0], lse, overflow));
  kernels().attention_forward(changed.forward(out[1], lse, overflow));
  const int64_t same = (first + p.c.window - 1) * p.width;
  for (auto i = static_cast<size_t>(same); i < static_cast<size_t>(p.c.tokens * p.width); ++i)
    ASSERT_EQ(out[0].f32[i], out[1].f32[i]) << i;
  EXPECT_NE(out[0].f32[static_cast<size_t>(same - 1)], out[1].f32[static_cast<size_t>(same - 1)]);
}

TEST_P(AttentionTest, NotANumberSetsTheFlag) {
  Problem p(kCases[1], DType::kFloat32);
  p.qkv.f32[5] = std::numeric_limits<float>::quiet_NaN();
  OverflowFlag overflow{0};
  Tensor out(DType::kFloat32, p.c.samples * p.c.tokens * p.width);
  std::vector<float> lse(static_cast<size_t>(p.c.samples * p.c.heads * p.c.tokens));
  kernels().attention_forward(p.forward(out, lse, overflow));
  EXPECT_EQ(overflow, 1U);
}

}  // namespace
}  // namespace trainyard::kernels::test
