#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "kernels/cuda/cublaslt.h"

namespace trainyard::kernels::cuda {

/// C[M,N] (+)= op(A)[M,K] op(B)[K,N] (+ bias[N]); row-major, accumulated in fp32. What a plan
/// depends on.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;  ///< A is [K,M], B is [N,K]
  DType input = DType::kBFloat16;                 ///< of A and B: kBFloat16 or kFloat32 (IEEE)
  DType output = DType::kBFloat16;                ///< of C and bias: kBFloat16 or kFloat32
  int64_t lda = 0, ldb = 0, ldc = 0;              ///< elements of a row
  bool accumulate = false;                        ///< C += instead of C =
  bool has_bias = false;
  /// The sum over k may be split, and the plan is the library's first choice: it is not measured,
  /// so that bits do not depend on how fast something was. Plans for what accumulates and what does
  /// not are the same.
  bool any_order = false;

  auto operator<=>(const GemmProblem&) const = default;
};

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* c = nullptr;
  void* workspace = nullptr;  ///< GemmOptions::workspace_bytes, aligned to 256 bytes
};

struct GemmOptions {
  size_t workspace_bytes = size_t{64} << 20U;
  /// Whether a sum over k may be split: faster where C is small, and bits depend on the plan.
  bool split_k = false;
  /// Whether plans are measured; otherwise the first that cuBLASLt proposes is used.
  bool measures = true;
  /// Measured plans are kept here, or nowhere (docs/formats/gemm-plans.md).
  std::filesystem::path plan_file;
  /// The GPU and its driver, in words: plans of another machine are measured again.
  std::string machine;
  /// Of the wait for a product that is measured.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
};

/// Matrix products by cuBLASLt. Without GemmOptions::split_k only plans with split-K 1 are used,
/// whose sums run over ascending k whatever the tile, but for GemmProblem::any_order. Never a fused
/// GELU gradient or bias gradient: they are slower than separate kernels. Not thread-safe.
class Gemm {
 public:
  /// Reads the plan file; a damaged file, or one of another machine or library, counts as empty.
  static Result<std::unique_ptr<Gemm>> create(const cublaslt::Api& api, const GemmOptions& options);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// Makes a plan: the kept one if the library still takes it, or the fastest of up to 8, each run
  /// on the operands. Synchronises the stream; what C holds is lost. With any_order nothing is run.
  /// kInvalidConfig where the problem is not one for the library, kUnavailable where it has no
  /// plan, kDeadline where the GPU does not come to the end of a run.
  Status prepare(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream);
  /// Enqueues a prepared product. Neither allocates device memory nor synchronises. kInternal
  /// without a plan or with a misaligned operand; kUnavailable where the library fails.
  Status run(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream);
  /// Writes the plan file if plans were measured.
  Status keep_plans();
  int64_t plans_measured() const { return measured_; }

 private:
  struct Plan;
  explicit Gemm(const cublaslt::Api& api, GemmOptions options);
  Result<std::unique_ptr<Plan>> describe(const GemmProblem& problem, const void* bias) const;
  Result<std::vector<cublaslt::Heuristic>> ask(const Plan& plan, bool split_k) const;
  Result<std::vector<cublaslt::Heuristic>> candidates(const Plan& plan, bool splits) const;
  bool fits(const Plan& plan, cublaslt::Heuristic& choice, bool splits) const;
  bool splits_k(const cublaslt::Heuristic& choice) const;
  Result<float> measure(const Plan& plan, const GemmProblem& problem, const GemmOperands& operands,
                        cudaStream_t stream);
  Status wait_for(cudaEvent_t event, const GemmProblem& problem) const;
  Status enqueue(const Plan& plan, const GemmProblem& problem, const GemmOperands& operands,
                 cudaStream_t stream) const;
  std::string header() const;
  void read_plans();

  cublaslt::Api api_;
  GemmOptions options_;
  cublaslt::Handle handle_ = nullptr;
  std::map<GemmProblem, std::unique_ptr<Plan>> plans_;
  std::map<std::string, cublaslt::Heuristic> kept_;  ///< by the problem's words
  int64_t measured_ = 0;
};

/// Whether the library's products of this problem, by the plan that runs, have the bits of an
/// ascending chain of k16 tensor-core steps (kernels/cuda/gemm_chain.cu), as canonical numerics
/// demands. Runs the problem, which must be one of bf16 that does not accumulate, on pseudo-random
/// operands that it writes in place of what they hold, and compares the first and the last 64 rows;
/// `result` is device memory for two numbers. The answer is a hash of C, equal on all ranks.
/// kInvalidConfig where bits differ. Synchronises.
Result<uint64_t> canonical_self_test(Gemm& gemm, const GemmProblem& problem,
                                     const GemmOperands& operands, uint64_t* result,
                                     cudaStream_t stream);

/// Counts in result[0] the elements of C's first and last 64 rows that are not op(A) op(B) + bias
/// of bf16 as one ascending chain of k16 steps, and adds to result[1] a hash of all of C. Slow.
cudaError_t gemm_chain_check(const GemmProblem& problem, const GemmOperands& operands,
                             uint64_t* result, cudaStream_t stream);
/// bf16 of either sign with magnitudes over eight binades, so that the order of a sum shows.
cudaError_t gemm_operand(void* x, int64_t count, uint64_t seed, cudaStream_t stream);

}  // namespace trainyard::kernels::cuda
