#include "kernels/cuda/gemm.h"

namespace trainyard::kernels::cuda {

Result<uint64_t> canonical_self_test(Gemm& gemm, const GemmProblem& problem,
                                     const GemmOperands& operands, uint64_t* result,
                                     cudaStream_t stream) {
  const GemmProblem& p = problem;
  const auto failed = [](const char* what, cudaError_t error) {
    return Error{
        error == cudaErrorInvalidValue ? ErrorCode::kInvalidConfig : ErrorCode::kUnavailable,
        std::string("CUDA: ") + what + ": " + cudaGetErrorString(error)};
  };
  // GemmOperands has inputs as constants; here they are scratch.
  const auto fill = [&](const void* x, int64_t count, uint64_t seed) {
    return gemm_operand(const_cast<void*>(x), count, seed, stream);
  };
  cudaError_t error = fill(operands.a, (p.transpose_a ? p.k : p.m) * p.lda, 1);
  if (error == cudaSuccess) error = fill(operands.b, (p.transpose_b ? p.n : p.k) * p.ldb, 2);
  if (error == cudaSuccess && p.has_bias) {  // of fp32 two bf16 make one number, as good as any
    error = fill(operands.bias, p.n * size_of(p.output) / 2, 3);
  }
  if (error == cudaSuccess) error = cudaMemsetAsync(result, 0, 2 * sizeof *result, stream);
  if (error != cudaSuccess) return failed("writing operands", error);
  TRAINYARD_TRY(gemm.prepare(p, operands, stream));
  TRAINYARD_TRY(gemm.run(p, operands, stream));
  error = gemm_chain_check(p, operands, result, stream);
  if (error != cudaSuccess) return failed("product as a chain", error);
  uint64_t found[2] = {};
  error = cudaMemcpyAsync(found, result, sizeof found, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return failed("comparing a product", error);
  if (found[0] == 0) return found[1];
  return Error{ErrorCode::kInvalidConfig,
               "canonical numerics: " + std::to_string(found[0]) +
                   " of the elements compared of a " + std::to_string(p.m) + " x " +
                   std::to_string(p.n) + " x " + std::to_string(p.k) +
                   " product by this cuBLASLt differ from an ascending chain of k16 steps; use "
                   "numerics Fast, or another version of cuBLASLt"};
}

}  // namespace trainyard::kernels::cuda
