#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker/device/cuda_kernel_set.h"

/// The products of a CudaKernelSet, and the exact sums that they are added to.
namespace trainyard::engine {

namespace cuda = kernels::cuda;
using kernels::Sequence;

namespace {

/// All of it at once.
cuda::GemmProblem problem_of(const kernels::GemmParams& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .transpose_a = p.transpose_a,
          .transpose_b = p.transpose_b,
          .input = p.input,
          .output = p.c_type,
          .lda = p.lda,
          .ldb = p.ldb,
          .ldc = p.ldc};
}

}  // namespace

void CudaKernelSet::product(const cuda::GemmProblem& problem, cuda::GemmOperands operands) {
  if (!ready()) return;
  operands.workspace = at<std::byte>(places_.workspace);
  Status status = gemm_->prepare(problem, operands, stream_.get());  // at its first call alone
  if (status) status = gemm_->run(problem, operands, stream_.get());
  if (!status) stream_.note(std::move(status).error());
}

void CudaKernelSet::gemm(const kernels::GemmParams& p) {
  counters_.gemm_flops += 2 * p.m * p.n * p.k;
  if (p.m <= 0 || p.n <= 0 || !ready()) return;
  if (p.output == kernels::GemmOutput::kExactAccumulate) {
    accumulate_chains(p);
  } else if (p.output == kernels::GemmOutput::kAccumulate) {
    accumulate_product(p);
  } else if (p.output == kernels::GemmOutput::kExactRound && shapes_.pieces > 0 && p.k > 0) {
    round_chains(p);
  } else {
    store(p);
  }
}

/// One sum over k. A bias has the type of the result.
void CudaKernelSet::store(const kernels::GemmParams& p) {
  const void* bias = p.bias;
  if (p.bias != nullptr && p.c_type == DType::kBFloat16) {
    if (!fits("bias", 0, p.n)) return;
    cast_to_bf16(p.bias, at<uint16_t>(places_.bias), p.n);
    bias = at<uint16_t>(places_.bias);
  }
  cuda::GemmProblem problem = problem_of(p);
  problem.has_bias = bias != nullptr;
  product(problem, {.a = p.a, .b = p.b, .bias = bias, .c = p.c});
}

/// C += the product, straight into fp32 sums.
void CudaKernelSet::accumulate_product(const kernels::GemmParams& p) {
  TRAINYARD_CHECK(p.ldc == p.n && p.bias == nullptr && p.c_type == DType::kFloat32);
  if (p.k > 0) {
    cuda::GemmProblem problem = problem_of(p);
    problem.accumulate = !p.overwrite;
    problem.any_order = true;
    product(problem, {.a = p.a, .b = p.b, .c = p.c});
  } else if (p.overwrite) {
    clear(p.c, p.m * p.n * size_of(DType::kFloat32));
  }
  if (p.squares.limbs == nullptr) return;
  sum_of_squares({.count = p.m * p.n,
                  .gradient = {.rounded = static_cast<const float*>(p.c)},
                  .rounded_scale = static_cast<float>(p.squares.scale),
                  .limbs = p.squares.limbs,
                  .overflow = p.squares.overflow});
}

/// What K is summed by: the chains that are given, or grains of token rows.
std::vector<Sequence> CudaKernelSet::chains_of(const kernels::GemmParams& p) const {
  if (p.chain_ends.empty()) return grains_of(p.grains, p.k);
  std::vector<Sequence> all;
  int64_t begin = 0;
  for (const int64_t end : p.chain_ends) {
    all.push_back({.begin = begin, .length = end - begin});
    begin = end;
  }
  return all;
}

/// Rows of C whose partial is rounded right after its product.
int64_t CudaKernelSet::rows_at_once(const kernels::GemmParams& p) const {
  return std::max<int64_t>(places_.partial_floats / p.n / 8 * 8, 8);
}

/// sums += the fp32 product of a chain, rounded once.
void CudaKernelSet::add_chain(const kernels::GemmParams& p, const Sequence& chain,
                              const RowBlock& block, bool overwrites,
                              const kernels::SquaresOfSums& squares) {
  auto* const partial = at<float>(places_.partial);
  const int64_t row = block.first;
  cuda::GemmProblem problem = problem_of(p);
  problem.m = block.rows;
  problem.k = chain.length;
  problem.output = DType::kFloat32;
  problem.ldc = p.n;
  product(problem,
          {.a = element(p.a, p.transpose_a ? chain.begin * p.lda + row : row * p.lda + chain.begin,
                        p.input),
           .b = element(p.b, p.transpose_b ? chain.begin : chain.begin * p.ldb, p.input),
           .c = partial});
  if (!ready()) return;
  note("add_exact", cuda::add_exact(partial, block.sums, block.rows * p.n,
                                    {p.quantum_log2, p.partials, p.overflow}, stream_.get(),
                                    overwrites, squares));
}

/// C += the product of each chain.
void CudaKernelSet::accumulate_chains(const kernels::GemmParams& p) {
  TRAINYARD_CHECK(p.ldc == p.n && p.bias == nullptr);
  if (p.k <= 0) {
    if (p.overwrite) clear(p.c, p.m * p.n * size_of(DType::kInt64));
    if (p.squares.limbs == nullptr) return;
    sum_of_squares({.count = p.m * p.n,
                    .gradient = {.sums = static_cast<int64_t*>(p.c), .scale = p.squares.scale},
                    .limbs = p.squares.limbs,
                    .overflow = p.squares.overflow});
    return;
  }
  const int64_t most = rows_at_once(p);
  bool overwrites = p.overwrite;
  const std::vector<Sequence> chains = chains_of(p);
  for (const Sequence& chain : chains) {
    const bool is_last = &chain == &chains.back();
    for (int64_t row = 0; row < p.m && ready(); row += most) {
      add_chain(p, chain, {row, std::min(most, p.m - row), static_cast<int64_t*>(p.c) + row * p.n},
                overwrites, is_last ? p.squares : kernels::SquaresOfSums());
    }
    overwrites = false;
  }
}

/// C = the exact sum of the products of the chains, rounded once.
void CudaKernelSet::round_chains(const kernels::GemmParams& p) {
  TRAINYARD_CHECK(p.ldc == p.n);
  kernels::GemmParams of = p;
  const std::vector<Sequence> chains = chains_of(p);
  of.partials = std::ssize(chains);
  const int64_t most = rows_at_once(p);
  auto* const sums = at<int64_t>(places_.exact);
  for (int64_t row = 0; row < p.m && ready(); row += most) {
    const RowBlock block{row, std::min(most, p.m - row), sums};
    for (const Sequence& chain : chains)
      add_chain(of, chain, block, &chain == &chains.front(), {});
    round_exact({.rows = block.rows,
                 .width = p.n,
                 .sums = sums,
                 .bias = p.bias,
                 .y = {static_cast<std::byte*>(p.c) + row * p.n * size_of(p.c_type), p.c_type}});
  }
}

void CudaKernelSet::round_exact(const kernels::RoundExact& p) {
  if (p.rows <= 0 || !fits("round_exact", p.rows, p.width)) return;
  note("round_exact", cuda::round_exact(p, stream_.get()));
}

}  // namespace trainyard::engine
