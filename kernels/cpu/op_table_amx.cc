// The kernels where there is AMX: those of AVX-512 BF16, with the products of its own.

#include "kernels/cpu/op_table.h"
#include "kernels/cpu/ops.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

const OpTable& op_table() {
  static const OpTable table = [] {
    OpTable t = isa_avx512_bf16::op_table();
    t.gemm = gemm;
    t.attention_forward = attention_forward;
    t.attention_backward = attention_backward;
    return t;
  }();
  return table;
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE
