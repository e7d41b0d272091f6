// Matrix products through the table of cuBLASLt's functions, filled from an emulated library.

#include "kernels/cuda/gemm.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>

#include "tests/numeric/cuda/support.h"
#include "tests/support/fake_cublaslt.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::kernels::cuda::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing_support::fake_cublaslt;
using testing_support::fake_cublaslt_api;

class CudaGemmTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    fake_cublaslt() = {};
    workspace_ = allocate<std::byte>(static_cast<int64_t>(options_.workspace_bytes));
  }
  void TearDown() override {
    EXPECT_EQ("", fake_cublaslt().complaint);
    EXPECT_EQ(0, fake_cublaslt().live_objects);
    CudaTest::TearDown();
  }

  std::unique_ptr<Gemm> create() {
    auto gemm = Gemm::create(fake_cublaslt_api(), options_);
    EXPECT_TRUE(gemm) << gemm.error().message;
    return *std::move(gemm);
  }
  /// 24 x 40 x 56 of bf16 into bf16.
  static GemmProblem problem(bool transpose_a = false, bool transpose_b = false) {
    GemmProblem p{.m = 24, .n = 40, .k = 56};
    p.transpose_a = transpose_a;
    p.transpose_b = transpose_b;
    p.lda = transpose_a ? p.m : p.k;
    p.ldb = transpose_b ? p.k : p.n;
    p.ldc = p.n;
    return p;
  }
  GemmOperands operands(const GemmProblem& p) {
    GemmOperands o;
    a_ = Tensor(p.input, normal(p.m * p.k, 1));
    b_ = Tensor(p.input, normal(p.n * p.k, 2));
    o.a = upload(a_);
    o.b = upload(b_);
    c_ = Tensor(p.output, normal(p.m * p.n, 3));
    o.c = upload(c_);
    bias_ = Tensor(p.output, normal(p.n, 4));
    o.bias = upload(bias_);
    o.workspace = workspace_;
    return o;
  }

  GemmOptions options_{.workspace_bytes = 8192, .machine = "GPU X, driver 1"};
  std::byte* workspace_ = nullptr;
  Tensor a_, b_, c_, bias_;
};
TRAINYARD_CUDA_TEST_SUITE(CudaGemmTest);

TEST_P(CudaGemmTest, RowMajorProductsOfEveryForm) {
  for (int form = 0; form < 16; ++form) {
    GemmProblem p = problem((form & 1) != 0, (form & 2) != 0);
    p.accumulate = (form & 4) != 0;  // of gradients, in fp32
    p.output = p.accumulate ? DType::kFloat32 : DType::kBFloat16;
    p.has_bias = (form & 8) != 0 && !p.accumulate;
    if (form == 8) p.input = p.output = DType::kFloat32;
    const std::unique_ptr<Gemm> gemm = create();
    GemmOperands o = operands(p);
    ASSERT_TRUE(gemm->prepare(p, o, stream_));
    o.c = upload(c_);
    const Status status = gemm->run(p, o, stream_);
    ASSERT_TRUE(status) << status.error().message;
    Vector expected =
        reference::gemm(p.m, p.n, p.k, a_.doubles(), p.transpose_a, b_.doubles(), p.transpose_b);
    if (p.accumulate) expected = expected + c_.doubles();
    if (p.has_bias) expected = expected + bias_.doubles();
    EXPECT_TRUE(near(download(o.c, p.output, p.m * p.n).doubles(), expected, 1e-4,
                     rounding_of(p.output) + 1e-5))
        << form;
  }
}

TEST_P(CudaGemmTest, MeasuresPlansWithoutSplitKOnceAndKeepsThem) {
  const testing_support::TemporaryDirectory folder;
  options_.plan_file = folder.path() / "plans";
  const GemmProblem p = problem();
  const GemmOperands o = operands(p);
  {
    const std::unique_ptr<Gemm> gemm = create();
    ASSERT_TRUE(gemm->prepare(p, o, stream_));
    ASSERT_TRUE(gemm->prepare(p, o, stream_));
    EXPECT_EQ(1, gemm->plans_measured());
    EXPECT_EQ(18, fake_cublaslt().products) << "three plans of split-K 1, six runs each";
    EXPECT_THAT(fake_cublaslt().splits_run, Each(1));
    ASSERT_TRUE(gemm->keep_plans());
  }
  fake_cublaslt().products = 0;
  {
    const std::unique_ptr<Gemm> gemm = create();
    ASSERT_TRUE(gemm->prepare(p, o, stream_));
    EXPECT_EQ(0, fake_cublaslt().products);
    EXPECT_EQ(0, gemm->plans_measured());
    ASSERT_TRUE(gemm->run(p, o, stream_));
    EXPECT_EQ(1, fake_cublaslt().products);
  }
  // Another driver, another library, a damaged file, other numerics: measured again.
  std::stringstream text;
  text << std::ifstream(options_.plan_file).rdbuf();
  const GemmOptions options = options_;
  for (int what = 0; what < 4; ++what) {
    options_ = options;
    fake_cublaslt().products = 0;
    fake_cublaslt().version = what == 1 ? 1 : testing_support::FakeCublasLt{}.version;
    if (what == 0) options_.machine = "GPU X, driver 2";
    options_.split_k = what == 3;
    const size_t kept = what == 2 ? text.str().size() / 2 + 20 : text.str().size();
    std::ofstream(options_.plan_file) << text.str().substr(0, kept);
    const std::unique_ptr<Gemm> gemm = create();
    ASSERT_TRUE(gemm->prepare(p, o, stream_));
    EXPECT_EQ(what == 3 ? 30 : 18, fake_cublaslt().products) << what;
  }
}

TEST_P(CudaGemmTest, LeavesOutPlansWithTooMuchWorkspace) {
  fake_cublaslt().needs_workspace_bytes = 4096;  // times the plan's index: of 8192, two fit
  const std::unique_ptr<Gemm> gemm = create();
  const GemmProblem p = problem();
  const GemmOperands o = operands(p);
  ASSERT_TRUE(gemm->prepare(p, o, stream_));
  EXPECT_EQ(12, fake_cublaslt().products);
}

TEST_P(CudaGemmTest, UnsplitsPlansWhereThereAreNoOthers) {
  fake_cublaslt().split_k = {2, 4};
  const GemmProblem p = problem();
  const GemmOperands o = operands(p);
  ASSERT_TRUE(create()->prepare(p, o, stream_));
  EXPECT_EQ(12, fake_cublaslt().products);
  EXPECT_THAT(fake_cublaslt().splits_run, Each(1));
  fake_cublaslt().fails = "check";
  const Status status = create()->prepare(p, o, stream_);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("no plan with split-K 1 within 8192 bytes"));
}

TEST_P(CudaGemmTest, AKeptPlanIsLookedAtBeforeItRuns) {
  const testing_support::TemporaryDirectory folder;
  options_.plan_file = folder.path() / "plans";
  fake_cublaslt().split_k = {1};
  const GemmProblem p = problem();
  const GemmOperands o = operands(p);
  {
    const std::unique_ptr<Gemm> gemm = create();
    ASSERT_TRUE(gemm->prepare(p, o, stream_));
    ASSERT_TRUE(gemm->keep_plans());
  }
  fake_cublaslt().split_k = {1, 1};
  fake_cublaslt().refused_algorithm = 0;
  EXPECT_TRUE(create()->prepare(p, o, stream_));
  EXPECT_EQ(12, fake_cublaslt().products)
      << "one plan was not measured; the library refuses it by now";
  // A file that somebody has edited: the third word is split-K, the fifth how parts are added.
  fake_cublaslt().refused_algorithm = ~size_t{0};
  std::stringstream text;
  text << std::ifstream(options_.plan_file).rdbuf();
  std::string edited = text.str();
  edited.replace(edited.find("616e 0 1 0 0"), 12, "616e 0 2 0 2");
  std::ofstream(options_.plan_file) << edited;
  fake_cublaslt().products = 0;
  fake_cublaslt().splits_run.clear();
  const std::unique_ptr<Gemm> gemm = create();
  ASSERT_TRUE(gemm->prepare(p, o, stream_));
  ASSERT_TRUE(gemm->run(p, o, stream_));
  EXPECT_THAT(fake_cublaslt().splits_run, Each(1));
  EXPECT_EQ(13, fake_cublaslt().products);
}

TEST_P(CudaGemmTest, SumsMayBeSplitWhereBitsMayDependOnThePlan) {
  options_.split_k = true;
  const GemmProblem p = problem();
  const GemmOperands o = operands(p);
  ASSERT_TRUE(create()->prepare(p, o, stream_));
  EXPECT_EQ(30, fake_cublaslt().products) << "five plans, six runs each";
}

/// Of sums in any order the library's first choice that it takes, which leaves C as it is.
TEST_P(CudaGemmTest, APlanForAnyOrderIsNotMeasured) {
  const testing_support::TemporaryDirectory folder;
  options_.plan_file = folder.path() / "plans";
  GemmProblem p = problem();
  p.output = DType::kFloat32;
  p.any_order = true;
  for (const bool refuses_first : {false, true}) {
    fake_cublaslt() = {};
    if (refuses_first) fake_cublaslt().refused_algorithm = 0;
    const std::unique_ptr<Gemm> gemm = create();
    GemmOperands o = operands(p);
    o.c = upload(c_);
    const Vector before = download(o.c, p.output, p.m * p.n).doubles();
    for (const bool accumulates : {true, false}) {
      p.accumulate = accumulates;
      ASSERT_TRUE(gemm->prepare(p, o, stream_));
    }
    EXPECT_EQ(before, download(o.c, p.output, p.m * p.n).doubles());
    EXPECT_EQ(0, fake_cublaslt().products);
    for (const bool accumulates : {true, false}) {
      p.accumulate = accumulates;
      ASSERT_TRUE(gemm->run(p, o, stream_));
    }
    EXPECT_THAT(fake_cublaslt().splits_run, Each(refuses_first ? 1 : 4));
    ASSERT_TRUE(gemm->keep_plans());
    EXPECT_FALSE(std::filesystem::exists(options_.plan_file)) << "nothing was measured";
  }
}

TEST_P(CudaGemmTest, SaysWhatFailed) {
  const GemmProblem p = problem();
  const GemmOperands o = operands(p);
  for (const char* const function :
       {"create_description", "create_layout", "create_preference", "heuristics", "matmul"}) {
    const std::unique_ptr<Gemm> gemm = create();
    fake_cublaslt().fails = function;
    const Status status = gemm->prepare(p, o, stream_);
    ASSERT_FALSE(status) << function;
    EXPECT_EQ(ErrorCode::kUnavailable, status.error().code);
    EXPECT_THAT(status.error().message, AllOf(HasSubstr("cuBLASLt"), HasSubstr("status 14")));
    fake_cublaslt().fails.clear();
  }
  fake_cublaslt().fails = "create";
  EXPECT_FALSE(Gemm::create(fake_cublaslt_api(), options_));
  fake_cublaslt().fails.clear();
  const std::unique_ptr<Gemm> gemm = create();
  EXPECT_THAT(gemm->run(p, o, stream_).error().message, HasSubstr("was not prepared"));
  ASSERT_TRUE(gemm->prepare(p, o, stream_));
  GemmOperands misaligned = o;
  misaligned.a = static_cast<const std::byte*>(o.a) + 2;
  EXPECT_THAT(gemm->run(p, misaligned, stream_).error().message, HasSubstr("16 bytes"));
}

TEST_P(CudaGemmTest, RefusesProblemsThatTheLibraryDoesNotTake) {
  const std::unique_ptr<Gemm> gemm = create();
  const auto message = [&](auto change) {
    GemmProblem p = problem();
    change(p);
    const Status status = gemm->prepare(p, {}, stream_);
    return status ? std::string("none") : status.error().message;
  };
  EXPECT_THAT(message([](GemmProblem& p) { p.k = 0; }), HasSubstr("empty dimension"));
  EXPECT_THAT(message([](GemmProblem& p) { p.ldb = 39; }), HasSubstr("16 bytes"));
  EXPECT_THAT(message([](GemmProblem& p) { p.lda = 48; }), HasSubstr("overlap"));
  EXPECT_THAT(message([](GemmProblem& p) { p.input = DType::kFloat32; }), HasSubstr("into bf16"));
  EXPECT_THAT(message([](GemmProblem& p) { p.output = DType::kInt64; }), HasSubstr("type"));
}

TEST_P(CudaGemmTest, SelfTestComparesWithTheChain) {
  auto* const result = allocate<uint64_t>(2);
  for (const bool is_wide : {false, true}) {  // fp32, and bf16 with a bias, more rows than compared
    GemmProblem p = problem();
    p.k = p.lda = 120;
    p.m = is_wide ? 144 : 24;
    p.output = is_wide ? DType::kBFloat16 : DType::kFloat32;
    p.has_bias = is_wide;
    GemmOperands o;
    o.a = allocate(DType::kBFloat16, p.m * p.lda);
    o.b = allocate(DType::kBFloat16, p.k * p.ldb);
    o.bias = allocate(p.output, p.n);
    o.c = allocate(p.output, p.m * p.ldc);
    o.workspace = workspace_;
    fake_cublaslt().descending = false;
    {
      const std::unique_ptr<Gemm> gemm = create();
      const auto first = canonical_self_test(*gemm, p, o, result, stream_);
      ASSERT_TRUE(first) << first.error().message;
      const auto again = canonical_self_test(*gemm, p, o, result, stream_);
      EXPECT_EQ(*first, *again);
    }
    if (is_wide) continue;  // bf16 hides most differences of a short sum
    fake_cublaslt().descending = true;
    const std::unique_ptr<Gemm> gemm = create();
    const auto other = canonical_self_test(*gemm, p, o, result, stream_);
    ASSERT_FALSE(other);
    EXPECT_THAT(other.error().message, HasSubstr("differ from an ascending chain of k16 steps"));
  }
}

TEST_P(CudaGemmTest, AMissingLibraryIsNamed) {
  const auto api = cublaslt::load("libnot_there.so.1");
  ASSERT_FALSE(api);
  EXPECT_THAT(api.error().message, HasSubstr("libnot_there.so.1"));
  EXPECT_THAT(cublaslt::load("libm.so.6").error().message, HasSubstr("has no cublasLtCreate"));
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test
