#include "bench/kernels/peak.h"

namespace trainyard::kernels {
namespace isa_generic {
int64_t peak_float32(int64_t iterations, float* sink);
int64_t peak_bfloat16(int64_t iterations, float* sink);
}  // namespace isa_generic
namespace isa_avx2 {
int64_t peak_float32(int64_t iterations, float* sink);
int64_t peak_bfloat16(int64_t iterations, float* sink);
}  // namespace isa_avx2
namespace isa_avx512 {
int64_t peak_float32(int64_t iterations, float* sink);
int64_t peak_bfloat16(int64_t iterations, float* sink);
}  // namespace isa_avx512
namespace isa_avx512_bf16 {
int64_t peak_float32(int64_t iterations, float* sink);
int64_t peak_bfloat16(int64_t iterations, float* sink);
}  // namespace isa_avx512_bf16
namespace isa_amx {
int64_t peak_bfloat16(int64_t iterations, float* sink);
}  // namespace isa_amx
}  // namespace trainyard::kernels

namespace trainyard::bench {

PeakLoop peak_loop(kernels::Isa isa, DType type) {
  const bool f32 = type == DType::kFloat32;
  switch (isa) {
    case kernels::Isa::kGeneric:
      return f32 ? kernels::isa_generic::peak_float32 : kernels::isa_generic::peak_bfloat16;
    case kernels::Isa::kAvx2:
      return f32 ? kernels::isa_avx2::peak_float32 : kernels::isa_avx2::peak_bfloat16;
    case kernels::Isa::kAvx512:
      return f32 ? kernels::isa_avx512::peak_float32 : kernels::isa_avx512::peak_bfloat16;
    case kernels::Isa::kAvx512Bf16:
      return f32 ? kernels::isa_avx512_bf16::peak_float32 : kernels::isa_avx512_bf16::peak_bfloat16;
    case kernels::Isa::kAmx:
      return f32 ? kernels::isa_avx512_bf16::peak_float32 : kernels::isa_amx::peak_bfloat16;
  }
  return nullptr;
}

}  // namespace trainyard::bench
