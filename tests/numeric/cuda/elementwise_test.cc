// GELU, SwiGLU, dropout and embeddings against references in double, and copies of heads.

#include <numeric>

#include "kernels/cuda/head_parts.h"
#include "tests/numeric/cuda/support.h"

namespace trainyard::kernels::cuda::test {
namespace {

constexpr int kQuantum = 40;

class CudaElementwiseTest : public CudaTest {
 protected:
  /// Of the first `vocab` tokens, without targets.
  EmbeddingBackward backward_of(int64_t width, const int32_t* tokens, int64_t vocab,
                                const ConstElements& dy) {
    return {.width = width,
            .tokens = tokens,
            .held = {.count = vocab},
            .dy = dy,
            .quantum_log2 = kQuantum,
            .overflow = upload(std::vector<uint32_t>{0})};
  }
  cudaError_t backward(const EmbeddingBackward& p, const DeviceRows& rows, int64_t positions) {
    auto* const scratch = allocate<int32_t>(embedding_scratch_ints(rows.count, p.held.count));
    return embedding_backward(p, rows, positions, scratch, stream_);
  }
};
TRAINYARD_CUDA_TEST_SUITE(CudaElementwiseTest);

struct Shape {
  DType type;
  int64_t rows, width;
};
const Shape kShapes[] = {{DType::kBFloat16, 21, 264},
                         {DType::kBFloat16, 7, 77},
                         {DType::kFloat32, 9, 40},
                         {DType::kFloat32, 3, 261}};

TEST_P(CudaElementwiseTest, GeluAddsTheBias) {
  for (const Shape& s : kShapes) {
    const int64_t count = s.rows * s.width;
    const Tensor x(s.type, normal(count, 1, 2.0F));
    const Tensor dy(s.type, normal(count, 2));
    const std::vector<float> bias = normal(s.width, 3);
    const std::vector<float> before = normal(s.width, 4);
    const float* const bias_row = upload(bias);
    const GeluForward f{
        .count = count, .x = {upload(x), s.type}, .y = {allocate(s.type, count), s.type}};
    ASSERT_EQ(cudaSuccess, gelu_forward(f, s.width, bias_row, stream_));
    GeluBackward b{.count = count, .x = f.x, .dx = {upload(dy), s.type}};
    b.dy = b.dx;
    BiasBackward sums{.rows = s.rows, .width = s.width, .dy = b.dx, .d_bias = upload(before)};
    auto* const scratch = allocate<float>(bias_scratch_floats(s.width));
    ASSERT_EQ(cudaSuccess, gelu_backward(b, bias_row, sums, scratch, stream_));

    Vector y = x.doubles() + doubles(bias);
    Vector dx = dy.doubles();
    for (size_t i = 0; i < y.size(); ++i) {
      dx[i] *= reference::gelu_derivative(y[i]);
      y[i] = reference::gelu(y[i]);
    }
    EXPECT_TRUE(
        near(download(f.y.data, s.type, count).doubles(), y, 1e-5, rounding_of(s.type) + 1e-5));
    const Vector actual = download(b.dx.data, s.type, count).doubles();
    EXPECT_TRUE(near(actual, dx, 1e-5, rounding_of(s.type) + 1e-5));
    EXPECT_TRUE(near(doubles(download(sums.d_bias.sum, s.width)),
                     reference::column_sums(s.rows, s.width, actual) + doubles(before), 1e-5,
                     1e-5));
    sums.dy = f.x;
    EXPECT_EQ(cudaErrorInvalidValue, gelu_backward(b, bias_row, sums, scratch, stream_))
        << "sums of other elements than dx";
    sums.dy = b.dx;
    b.x.type = s.type == DType::kFloat32 ? DType::kBFloat16 : DType::kFloat32;
    EXPECT_EQ(cudaErrorInvalidValue, gelu_backward(b, bias_row, sums, scratch, stream_));
  }
}

TEST_P(CudaElementwiseTest, BiasSumsAreRoundedOnce) {
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.push_back({DType::kFloat32, 8 * kColumnSumBlocks + 11, 8});  // more rows than blocks have
  for (const Shape& s : shapes) {
    const Tensor dy(s.type, normal(s.rows * s.width, 5));
    BiasBackward p{.rows = s.rows, .width = s.width, .dy = {upload(dy), s.type}};
    p.quantum_log2 = kQuantum;
    p.d_bias.exact = upload(std::vector<int64_t>(static_cast<size_t>(s.width), 3));
    p.overflow = upload(std::vector<uint32_t>{0});
    auto* const scratch = allocate<float>(bias_scratch_floats(s.width));
    ASSERT_EQ(cudaSuccess, bias_backward(p, scratch, stream_));
    EXPECT_TRUE(near(doubles(download(p.d_bias.exact, s.width), kQuantum),
                     reference::column_sums(s.rows, s.width, dy.doubles()), 1e-4, 1e-6));
    EXPECT_EQ(0u, download(p.overflow, 1)[0]);
  }
}

TEST_P(CudaElementwiseTest, Swiglu) {
  for (const Shape& s : kShapes) {
    const int64_t count = s.rows * s.width;
    const Tensor x(s.type, normal(2 * count, 6, 2.0F));
    const Tensor dy(s.type, normal(count, 7));
    GatedForward f{.rows = s.rows, .width = s.width};
    f.x = {upload(x), s.type};
    f.y = {allocate(s.type, count), s.type};
    ASSERT_EQ(cudaSuccess, gated_forward(f, stream_));
    GatedBackward b{.rows = s.rows, .width = s.width};
    b.dy = {upload(dy), s.type};
    b.dx = {upload(x), s.type};
    b.x = b.dx;
    ASSERT_EQ(cudaSuccess, gated_backward(b, stream_));
    f.activation = Activation::kGelu;
    EXPECT_EQ(cudaErrorInvalidValue, gated_forward(f, stream_)) << "no kernel";
    EXPECT_TRUE(near(download(f.y.data, s.type, count).doubles(),
                     reference::swiglu(s.rows, s.width, x.doubles()), 1e-5,
                     rounding_of(s.type) + 1e-5));
    EXPECT_TRUE(near(download(b.dx.data, s.type, 2 * count).doubles(),
                     reference::swiglu_backward(s.rows, s.width, dy.doubles(), x.doubles()), 1e-5,
                     rounding_of(s.type) + 1e-5));
  }
}

TEST_P(CudaElementwiseTest, DropoutHasTheMaskOfTheCpu) {
  constexpr int64_t kTokens = 3;
  std::vector<Sequence> sequences = sequences_of({kTokens, 1}, 5, 11);
  sequences[1].ordinal = (int64_t{1} << 33) + 2;
  const DropoutKey key{.rate = 0.3F, .seed = 42, .op = 7};
  for (const int64_t width : {int64_t{64}, int64_t{37}}) {
    const int64_t rows = kTokens + 1;
    const std::vector<float> x = normal(rows * width, 8);
    const std::vector<float> residual = normal(rows * width, 9);
    DropoutAdd p{.width = width, .dropout = key};
    p.x = upload(x);
    p.residual = upload(residual);
    p.y = allocate<float>(rows * width);
    ASSERT_EQ(cudaSuccess, dropout_add(p, upload(sequences), stream_));

    kernels::test::Kernels cpu(Isa::kGeneric, 1);
    std::vector<float> expected(x.size());
    cpu->dropout_add({.rows = kernels::test::rows_of(sequences),
                      .width = width,
                      .dropout = key,
                      .x = x.data(),
                      .residual = residual.data(),
                      .y = expected.data()});
    EXPECT_EQ(expected, download(static_cast<const float*>(p.y.data), rows * width));
  }
}

TEST_P(CudaElementwiseTest, DropoutOfRateZeroKeepsAll) {
  const Tensor x(DType::kBFloat16, normal(40, 10));
  DropoutAdd p{.width = 40};
  p.x = {upload(x), DType::kBFloat16};
  p.y = {allocate(DType::kBFloat16, 40), DType::kBFloat16};
  ASSERT_EQ(cudaSuccess, dropout_add(p, {.count = 1}, stream_));
  EXPECT_EQ(x.bf16, download(p.y.data, DType::kBFloat16, 40).bf16);
}

TEST_P(CudaElementwiseTest, EmbeddingAndItsGradient) {
  constexpr int64_t kRows = 45;
  constexpr int64_t kTokens = 9;
  constexpr int64_t kVocab = 21;
  constexpr int64_t kOffset = 2;
  for (const Shape& s : kShapes) {
    std::vector<int32_t> tokens(kRows, 3);  // a frequent token, absent ones, and rare ones
    for (size_t i = 0; i < kRows; i += 3)
      tokens[i] = static_cast<int32_t>(i * i % kVocab);
    const Tensor wte(s.type, normal(kVocab * s.width, 11));
    const Tensor wpe(s.type, normal((kTokens + kOffset) * s.width, 12));
    const Tensor dy(s.type, normal(kRows * s.width, 13));
    const std::vector<Sequence> sequences =
        sequences_of(std::vector<int64_t>(kRows / kTokens, kTokens), 0, kOffset);
    const DeviceRows of_batch = upload(sequences);
    EmbeddingForward f{.width = s.width};
    f.tokens = upload(tokens);
    f.wte = {upload(wte), s.type};
    f.wpe = {upload(wpe), s.type};
    f.y = {allocate(s.type, kRows * s.width), s.type};
    ASSERT_EQ(cudaSuccess, embedding_forward(f, of_batch, stream_));
    EXPECT_TRUE(
        near(download(f.y.data, s.type, kRows * s.width).doubles(),
             reference::embedding(s.width, kTokens, kOffset, tokens, wte.doubles(), wpe.doubles()),
             1e-6, rounding_of(s.type) + 1e-6));

    EmbeddingBackward b = backward_of(s.width, f.tokens, kVocab, {upload(dy), s.type});
    b.d_wte.exact = upload(std::vector<int64_t>(static_cast<size_t>(kVocab * s.width), 0));
    const std::vector<float> before = normal((kTokens + kOffset) * s.width, 14);
    b.d_wpe.sum = upload(before);
    b.partials = kRows;
    ASSERT_EQ(cudaSuccess, backward(b, of_batch, kTokens + kOffset));
    const auto r = reference::embedding_backward(s.width, kTokens, kOffset, tokens, dy.doubles(),
                                                 kVocab, kTokens + kOffset);
    EXPECT_TRUE(
        near(doubles(download(b.d_wte.exact, kVocab * s.width), kQuantum), r.d_wte, 1e-9, 0));
    EXPECT_TRUE(near(doubles(download(b.d_wpe.sum, (kTokens + kOffset) * s.width)),
                     r.d_wpe + doubles(before), 1e-5, 1e-6));
    EXPECT_EQ(0u, download(b.overflow, 1)[0]);
  }
}

TEST_P(CudaElementwiseTest, HeadsGoToTheirRanksAndBack) {
  constexpr int64_t kRows = 21;
  const std::vector<std::vector<int64_t>> all = {{96}, {96, 48}, {192, 96, 96}};
  for (const int64_t ranks : {1, 2, 3}) {
    for (const std::vector<int64_t>& segments : all) {
      const int64_t columns = std::accumulate(segments.begin(), segments.end(), int64_t{0});
      std::vector<float> whole(static_cast<size_t>(kRows * columns));
      std::iota(whole.begin(), whole.end(), 1.0F);
      std::vector<float> parts;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        for (int64_t row = 0; row < kRows; ++row) {
          auto at = whole.begin() + row * columns;
          for (const int64_t segment : segments) {
            const int64_t part = segment / ranks;
            parts.insert(parts.end(), at + rank * part, at + (rank + 1) * part);
            at += segment;
          }
        }
      }
      HeadParts p{.rows = kRows, .segments = segments, .ranks = ranks};
      p.whole = upload(whole);
      p.parts = allocate<float>(std::ssize(parts));
      ASSERT_EQ(cudaSuccess, copy_head_parts(p, stream_));
      EXPECT_EQ(download(static_cast<float*>(p.parts), std::ssize(parts)), parts);
      p.packs = false;
      p.whole = allocate<float>(std::ssize(whole));
      ASSERT_EQ(cudaSuccess, copy_head_parts(p, stream_));
      EXPECT_EQ(download(static_cast<float*>(p.whole), std::ssize(whole)), whole);
      // A part of 16 bytes is the least.
      p.element_bytes = 2;
      p.segments = std::span(segments).first(1);
      EXPECT_EQ(copy_head_parts(p, stream_), cudaSuccess);
      p.ranks = segments[0] / 4;
      EXPECT_EQ(copy_head_parts(p, stream_), cudaErrorInvalidValue);
      p.ranks = 1;
      for (const int64_t rows : {int64_t{0}, int64_t{1} << 31}) {
        p.rows = rows;
        EXPECT_EQ(copy_head_parts(p, stream_), cudaErrorInvalidValue) << rows;
      }
      p.rows = kRows;
      p.segments = {};
      EXPECT_EQ(copy_head_parts(p, stream_), cudaErrorInvalidValue);
    }
  }
}

TEST_P(CudaElementwiseTest, EmbeddingGradientOfFrequentTokens) {
  constexpr int64_t kTokens = 53;
  constexpr int64_t kVocab = 300;
  constexpr int64_t kRows = 4 * kTokens;
  std::vector<int32_t> tokens(kRows, 299);  // the last of the vocabulary, and 70 rows of another
  for (size_t i = 0; i < kRows; ++i) {
    if (i % 3 == 0) tokens[i] = 0;
    if (i % 17 == 1) tokens[i] = static_cast<int32_t>(i);
  }
  for (const Shape& s : {Shape{DType::kBFloat16, 0, 72}, Shape{DType::kFloat32, 0, 261}}) {
    const Tensor dy(s.type, normal(kRows * s.width, 15));
    const std::vector<float> before = normal(kVocab * s.width, 16);
    const DeviceRows rows = upload(sequences_of({kTokens, kTokens, kTokens, kTokens}));
    EmbeddingBackward b = backward_of(s.width, upload(tokens), kVocab, {upload(dy), s.type});
    b.d_wte.sum = upload(before);
    b.d_wpe.exact = upload(std::vector<int64_t>(static_cast<size_t>(kTokens * s.width), 5));
    b.partials = kRows;
    ASSERT_EQ(cudaSuccess, backward(b, rows, kTokens));
    const auto r =
        reference::embedding_backward(s.width, kTokens, 0, tokens, dy.doubles(), kVocab, kTokens);
    EXPECT_TRUE(near(doubles(download(b.d_wte.sum, kVocab * s.width)), r.d_wte + doubles(before),
                     1e-5, 1e-6));
    EXPECT_TRUE(
        near(doubles(download(b.d_wpe.exact, kTokens * s.width), kQuantum), r.d_wpe, 1e-9, 0));
    EXPECT_EQ(0u, download(b.overflow, 1)[0]);
  }
}

TEST_P(CudaElementwiseTest, EmbeddingOfSequencesOfAnyLengthIsThatOfEachAlone) {
  constexpr int64_t kVocab = 5;
  constexpr int64_t kPositions = 12;
  constexpr int64_t kWidth = 40;
  std::vector<Sequence> sequences = sequences_of({1, 12, 3, 7});
  sequences[2].position = 6;
  constexpr int64_t kRows = 23;
  std::vector<int32_t> tokens(kRows);
  for (size_t i = 0; i < kRows; ++i)
    tokens[i] = static_cast<int32_t>(i * i % kVocab);
  const std::vector<float> wte = normal(kVocab * kWidth, 17);
  const std::vector<float> wpe = normal(kPositions * kWidth, 18);
  const std::vector<float> dy = normal(kRows * kWidth, 19);
  const auto run = [&](int64_t first, const std::vector<Sequence>& of, std::vector<float>& y,
                       int64_t* d_wte, int64_t* d_wpe) {
    const DeviceRows of_batch = upload(of);
    EmbeddingForward f{.width = kWidth};
    f.tokens = upload(tokens) + first;
    f.wte = upload(wte);
    f.wpe = upload(wpe);
    f.y = allocate<float>(of_batch.count * kWidth);
    ASSERT_EQ(cudaSuccess, embedding_forward(f, of_batch, stream_));
    const std::vector<float> rows =
        download(static_cast<const float*>(f.y.data), of_batch.count * kWidth);
    y.insert(y.end(), rows.begin(), rows.end());
    EmbeddingBackward b = backward_of(kWidth, f.tokens, kVocab, upload(dy) + first * kWidth);
    b.d_wte.exact = d_wte;
    b.d_wpe.exact = d_wpe;
    b.partials = kRows;
    ASSERT_EQ(cudaSuccess, backward(b, of_batch, kPositions));
  };
  std::vector<float> y[2];
  int64_t* d_wte[2];
  int64_t* d_wpe[2];
  for (size_t i : {0, 1}) {
    d_wte[i] = upload(std::vector<int64_t>(kVocab * kWidth));
    d_wpe[i] = upload(std::vector<int64_t>(kPositions * kWidth));
  }
  run(0, sequences, y[0], d_wte[0], d_wpe[0]);
  for (Sequence sequence : sequences) {
    const int64_t first = std::exchange(sequence.begin, 0);
    run(first, {sequence}, y[1], d_wte[1], d_wpe[1]);
  }
  EXPECT_EQ(y[0], y[1]);
  EXPECT_EQ(download(d_wte[0], kVocab * kWidth), download(d_wte[1], kVocab * kWidth));
  EXPECT_EQ(download(d_wpe[0], kPositions * kWidth), download(d_wpe[1], kPositions * kWidth));
}

TEST_P(CudaElementwiseTest, PartsOfATableMakeUpTheWhole) {
  constexpr int64_t kVocab = 11;
  constexpr int64_t kPositions = 9;
  constexpr int64_t kRows = 80;  // of which one token has more than a warp sums
  const std::vector<Sequence> sequences = sequences_of({9, 9, 9, 9, 9, 9, 9, 9, 8});
  std::vector<int32_t> tokens(kRows, 7);
  for (size_t i = 0; i < 12; ++i)
    tokens[i] = static_cast<int32_t>(i % kVocab);
  for (const Shape& s : {Shape{DType::kBFloat16, 0, 40}, Shape{DType::kFloat32, 0, 13}}) {
    const Tensor wte(s.type, normal(kVocab * s.width, 31));
    const Tensor wpe(s.type, normal(kPositions * s.width, 32));
    const Tensor dy(s.type, normal(kRows * s.width, 33));
    const DeviceRows rows = upload(sequences);
    EmbeddingForward f{.width = s.width};
    f.tokens = upload(tokens);
    f.wte = {upload(wte), s.type};
    f.wpe = {upload(wpe), s.type};
    f.y = {allocate(s.type, kRows * s.width), s.type};
    ASSERT_EQ(cudaSuccess, embedding_forward(f, rows, stream_));
    const Vector whole = download(f.y.data, s.type, kRows * s.width).doubles();
    EmbeddingBackward b = backward_of(s.width, f.tokens, kVocab, {upload(dy), s.type});
    const auto zeros = [&](int64_t count) {
      return upload(std::vector<int64_t>(static_cast<size_t>(count * s.width), 0));
    };
    b.d_wte.exact = zeros(kVocab);
    b.d_wpe.exact = zeros(kPositions);
    b.partials = kRows;
    ASSERT_EQ(cudaSuccess, backward(b, rows, kPositions));
    const auto d_wte = download(b.d_wte.exact, kVocab * s.width);
    const auto d_wpe = download(b.d_wpe.exact, kPositions * s.width);

    Vector sum(whole.size(), 0.0);
    std::vector<int64_t> parts;
    constexpr int64_t kFirst = 4;
    for (const auto& [first, end] : {std::pair<int64_t, int64_t>{0, kFirst}, {kFirst, kVocab}}) {
      EmbeddingForward part = f;
      part.held = {.first = first, .count = end - first};
      part.wte.data = static_cast<const std::byte*>(f.wte.data) + first * s.width * size_of(s.type);
      part.wpe = {};
      part.y.data = allocate(s.type, kRows * s.width);
      ASSERT_EQ(cudaSuccess, embedding_forward(part, rows, stream_));
      const Vector y = download(part.y.data, s.type, kRows * s.width).doubles();
      for (size_t i = 0; i < y.size(); ++i) {
        const int32_t token = tokens[i / static_cast<size_t>(s.width)];
        if (token < first || token >= end) {
          ASSERT_EQ(0, y[i]) << "a token of another rank";
        }
        sum[i] += y[i];
      }
      EmbeddingBackward of_part = b;
      of_part.held = part.held;
      of_part.d_wte.exact = zeros(end - first);
      of_part.d_wpe = {};
      ASSERT_EQ(cudaSuccess, backward(of_part, rows, kPositions));
      const auto found = download(of_part.d_wte.exact, (end - first) * s.width);
      parts.insert(parts.end(), found.begin(), found.end());
    }
    EXPECT_EQ(d_wte, parts);
    // Positions alone, on what the ranks have put together.
    EmbeddingForward positions = f;
    positions.wte = {};
    positions.y.data = upload(Tensor(s.type, std::vector<float>(sum.begin(), sum.end())));
    ASSERT_EQ(cudaSuccess, embedding_forward(positions, rows, stream_));
    EXPECT_EQ(whole, download(positions.y.data, s.type, kRows * s.width).doubles());
    EmbeddingBackward alone = b;
    alone.held = {.count = 0};
    alone.d_wte = {};
    alone.d_wpe.exact = zeros(kPositions);
    ASSERT_EQ(cudaSuccess, backward(alone, rows, kPositions));
    EXPECT_EQ(d_wpe, download(alone.d_wpe.exact, kPositions * s.width));
    EXPECT_EQ(0u, download(b.overflow, 1)[0]);
  }
}

TEST_P(CudaElementwiseTest, RefusesAnEmbeddingOfNoTable) {
  const DeviceRows rows{.count = 1};
  float memory[8] = {};  // no kernel runs
  EXPECT_EQ(cudaErrorInvalidValue, embedding_forward({.width = 8, .y = memory}, rows, stream_));
  for (const int64_t tokens : {int64_t{0}, TokenRange().count}) {
    EXPECT_EQ(cudaErrorInvalidValue, embedding_backward({.width = 8, .held = {.count = tokens}},
                                                        rows, 0, nullptr, stream_))
        << tokens;
  }
}

TEST_P(CudaElementwiseTest, EmbeddingGradientThatDoesNotFitRaisesTheFlag) {
  std::vector<float> dy(16, 1.0F);
  dy[3] = 0x1p30F;  // times 2^40 is beyond 2^62
  EmbeddingBackward b = backward_of(8, upload(std::vector<int32_t>{1, 1}), 3, upload(dy));
  b.d_wte.exact = upload(std::vector<int64_t>(24, 7));
  ASSERT_EQ(cudaSuccess, backward(b, {.count = 2}, 0));
  EXPECT_EQ(1u, download(b.overflow, 1)[0]);
  const std::vector<int64_t> sums = download(b.d_wte.exact, 24);
  EXPECT_EQ((int64_t{1} << kQuantum) + 7, sums[8 + 3]) << "what does not fit adds nothing";
  EXPECT_EQ((int64_t{2} << kQuantum) + 7, sums[8 + 4]);
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test
