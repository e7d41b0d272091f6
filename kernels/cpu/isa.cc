#include "kernels/cpu/isa.h"

namespace trainyard::kernels {

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return "generic";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

ProcessorFeatures this_processor() {
  // __builtin_cpu_supports also asks whether the operating system saves the registers.
  return {.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0,
          .avx512 =
              __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
              __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
              __builtin_cpu_supports("avx512bf16") != 0};
}

bool is_available(Isa isa, const ProcessorFeatures& features) {
  switch (isa) {
    case Isa::kGeneric:
      return true;
    case Isa::kAvx2:
      return features.avx2;
    case Isa::kAvx512:
      return features.avx512;
  }
  return false;
}

Isa best_isa(const ProcessorFeatures& features) { return available_isas(features).back(); }

Isa isa_or_best(Isa wanted, const ProcessorFeatures& features) {
  return is_available(wanted, features) ? wanted : best_isa(features);
}

std::vector<Isa> available_isas(const ProcessorFeatures& features) {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
    if (is_available(isa, features)) isas.push_back(isa);
  }
  return isas;
}

}  // namespace trainyard::kernels
