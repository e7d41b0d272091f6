#include "kernels/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace trainyard::kernels {
namespace {

/// CPUID leaf 7, EDX: AMX-BF16 and AMX-TILE.
bool processor_has_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kBFloat16 = 1U << 22U;
  constexpr unsigned kTile = 1U << 24U;
  return (edx & kBFloat16) != 0 && (edx & kTile) != 0;
}

/// Linux (5.16 and later) saves the tile registers of processes that asked for it only; threads
/// that are there already are included. Refused by an older kernel, a sandbox, or where a thread's
/// alternative signal stack has no room for them.
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  static const bool granted =
      processor_has_amx() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return "generic";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

ProcessorFeatures this_processor() {
  // __builtin_cpu_supports also asks whether the operating system saves the registers.
  ProcessorFeatures features;
  features.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  features.avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  features.avx512_bf16 = __builtin_cpu_supports("avx512bf16") != 0;
  features.amx = features.avx512 && features.avx512_bf16 && may_use_tiles();
  return features;
}

bool is_available(Isa isa, const ProcessorFeatures& features) {
  switch (isa) {
    case Isa::kGeneric:
      return true;
    case Isa::kAvx2:
      return features.avx2;
    case Isa::kAvx512:
      return features.avx512;
    case Isa::kAvx512Bf16:
      return features.avx512 && features.avx512_bf16;
    case Isa::kAmx:
      return features.avx512 && features.avx512_bf16 && features.amx;
  }
  return false;
}

Isa best_isa(const ProcessorFeatures& features) { return available_isas(features).back(); }

Isa isa_or_best(Isa wanted, const ProcessorFeatures& features) {
  return is_available(wanted, features) ? wanted : best_isa(features);
}

std::vector<Isa> available_isas(const ProcessorFeatures& features) {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (is_available(isa, features)) isas.push_back(isa);
  }
  return isas;
}

}  // namespace trainyard::kernels
