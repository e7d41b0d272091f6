#include <cstdint>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "worker/matrix/formulas.h"

namespace trainyard::matrix {
namespace {

void compare(const char* what, int64_t found, int64_t wanted, std::vector<std::string>& faults) {
  if (found == wanted) return;
  faults.push_back(std::string(what) + ": found " + std::to_string(found) + ", formula " +
                   std::to_string(wanted));
}

/// `waste`: what packing may add to the most bytes alive at once.
void compare_packed(const char* what, int64_t found, int64_t alive, double waste,
                    std::vector<std::string>& faults) {
  const double most = (1 + waste) * static_cast<double>(alive);
  if (found >= alive && static_cast<double>(found) <= most) return;
  faults.push_back(std::string(what) + ": " + std::to_string(found) +
                   " bytes for a live maximum of " + std::to_string(alive));
}

}  // namespace

std::vector<std::string> formula_faults(const api::EngineSpec& spec, const Cell& cell,
                                        const RankFacts& rank, int64_t steps) {
  std::vector<std::string> faults;
  const Expected expected = expected_of(spec, cell, rank, steps);
  const engine::MemoryReport& memory = rank.memory;
  const kernels::KernelCounters& again = rank.recomputed;
  compare("GEMM FLOPs", rank.kernels.gemm_flops - again.gemm_flops, expected.gemm_flops, faults);
  compare("attention FLOPs", rank.kernels.attention_flops - again.attention_flops,
          expected.attention_flops, faults);
  compare("GEMM FLOPs computed again", again.gemm_flops, expected.recomputed_gemm_flops, faults);
  compare("attention FLOPs computed again", again.attention_flops,
          expected.recomputed_attention_flops, faults);
  int64_t unit_bytes = 0;
  for (const UnitFacts& unit : rank.units)
    unit_bytes += unit.elements * size_of(unit.dtype);
  compare("bytes of all units", unit_bytes, expected.unit_bytes, faults);
  compare("bytes of weights", memory.weights, expected.weights, faults);
  compare("bytes of moments", memory.moments, expected.moments, faults);
  compare("bytes of gradient sums", memory.sums, expected.sums, faults);
  // A unit's sums have one place in all of a step: where three stages of a rank follow each other
  // in turn, they take three though two are in use at a time. More layers are lent in more orders,
  // too.
  const double waste = cell.chunks > 1 || spec.model.layers > 2 ? 0.25 : 0.05;
  compare_packed("sums of a micro-batch", memory.lent_sums, expected.lent_sums, waste, faults);
  compare_packed("gathered weights", memory.lent_weights, expected.lent_weights, waste, faults);
  // Exchanges of context ranks add large buffers of other sizes.
  compare_packed("activation arena", memory.activations, memory.activations_live_max,
                 cell.context > 1 ? 0.05 : 0.02, faults);
  for (size_t stage = 0; stage < expected.in_flight.size(); ++stage) {
    compare("micro-batches in flight", memory.in_flight[stage], expected.in_flight[stage], faults);
  }
  compare("activations kept beyond a pass", memory.activations_kept, expected.activations_kept,
          faults);
  compare("bytes sent", rank.comm.bytes_sent, expected.bytes_sent, faults);
  compare("bytes allocated", rank.allocated_bytes,
          memory.parameters + memory.lent_sums + memory.lent_weights + memory.activations +
              memory.kernel_scratch,
          faults);
  for (std::string& fault : faults)
    fault.insert(0, "rank " + std::to_string(rank.rank) + ": ");
  return faults;
}

}  // namespace trainyard::matrix
