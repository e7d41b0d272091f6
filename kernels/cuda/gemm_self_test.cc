#include <cstring>

#include "kernels/cuda/gemm.h"

namespace trainyard::kernels::cuda {
namespace {

uint64_t next(uint64_t& state) {
  state = state * 6364136223846793005U + 1442695040888963407U;
  return state >> 33U;
}
/// bf16 of either sign with magnitudes over eight binades, so that the order of a sum shows.
std::vector<uint16_t> operand(int64_t count, uint64_t seed) {
  std::vector<uint16_t> x(static_cast<size_t>(count));
  for (uint16_t& bits : x) {
    const uint64_t r = next(seed);
    bits = static_cast<uint16_t>((r & 0x807fU) | (0x3c00U + (r >> 16U & 7U) * 0x80U));
  }
  return x;
}

/// Copies what `memory` holds to the host, rows of the problem's C only.
Result<std::vector<std::byte>> fetch(const GemmProblem& p, const void* memory,
                                     cudaStream_t stream) {
  const auto row = static_cast<size_t>(p.n * size_of(p.output));
  const auto stride = static_cast<size_t>(p.ldc * size_of(p.output));
  std::vector<std::byte> all(stride * static_cast<size_t>(p.m - 1) + row);
  cudaError_t error =
      cudaMemcpyAsync(all.data(), memory, all.size(), cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) {
    return Error{ErrorCode::kUnavailable,
                 std::string("CUDA: reading a product: ") + cudaGetErrorString(error)};
  }
  std::vector<std::byte> rows;
  for (int64_t i = 0; i < p.m; ++i) {
    const auto first = all.begin() + static_cast<ptrdiff_t>(stride) * i;
    rows.insert(rows.end(), first, first + static_cast<ptrdiff_t>(row));
  }
  return rows;
}

}  // namespace

Result<uint64_t> canonical_self_test(Gemm& gemm, const GemmProblem& problem, void* a, void* b,
                                     void* c, void* check, void* workspace, cudaStream_t stream) {
  const GemmProblem& p = problem;
  const std::vector<uint16_t> first = operand((p.transpose_a ? p.k : p.m) * p.lda, 1);
  const std::vector<uint16_t> second = operand((p.transpose_b ? p.n : p.k) * p.ldb, 2);
  cudaMemcpyAsync(a, first.data(), first.size() * 2, cudaMemcpyHostToDevice, stream);
  cudaMemcpyAsync(b, second.data(), second.size() * 2, cudaMemcpyHostToDevice, stream);
  if (const cudaError_t error = cudaStreamSynchronize(stream); error != cudaSuccess) {
    return Error{ErrorCode::kUnavailable,
                 std::string("CUDA: writing operands: ") + cudaGetErrorString(error)};
  }
  const GemmOperands operands{.a = a, .b = b, .c = c, .workspace = workspace};
  TRAINYARD_TRY(gemm.prepare(p, operands, stream));
  TRAINYARD_TRY(gemm.run(p, operands, stream));
  if (const cudaError_t error = gemm_chain(p, a, b, check, stream); error != cudaSuccess) {
    return Error{ErrorCode::kInvalidConfig,
                 std::string("CUDA: product as a chain: ") + cudaGetErrorString(error)};
  }
  TRAINYARD_ASSIGN(const std::vector<std::byte> actual, fetch(p, c, stream));
  TRAINYARD_ASSIGN(const std::vector<std::byte> expected, fetch(p, check, stream));
  int64_t differing = 0;
  uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  const auto size = static_cast<size_t>(size_of(p.output));
  for (size_t i = 0; i < actual.size(); i += size)
    differing += std::memcmp(&actual[i], &expected[i], size) != 0 ? 1 : 0;
  for (const std::byte byte : actual)
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3U;
  if (differing == 0) return hash;
  return Error{ErrorCode::kInvalidConfig,
               "canonical numerics: " + std::to_string(differing) + " of " +
                   std::to_string(p.m * p.n) + " elements of a " + std::to_string(p.m) + " x " +
                   std::to_string(p.n) + " x " + std::to_string(p.k) +
                   " product by this cuBLASLt differ from an ascending chain of k16 steps; use "
                   "numerics Fast, or another version of cuBLASLt"};
}

}  // namespace trainyard::kernels::cuda
