#include "cpu/isa.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace athanor {
namespace {

// Values of ATHANOR_CPU_ISA.
const char* key_of(Isa isa) {
  constexpr const char* kKeys[] = {"baseline", "avx2", "avx512", "avx512_bf16"};
  return kKeys[size_t(isa)];
}

std::string supported() {
  std::string all;
  for (const Isa each : kIsas)
    if (cpu_has(each)) all += cat(all.empty() ? "" : ", ", key_of(each));
  return all;
}

}  // namespace

const char* name_of(Isa isa) {
  constexpr const char* kNames[] = {"baseline", "AVX2", "AVX-512", "AVX-512 with bf16"};
  return kNames[size_t(isa)];
}

bool cpu_has(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512cd");
  switch (isa) {
    case Isa::baseline:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512_bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return isa == Isa::baseline;
}

Isa choose_isa(const char* asked) {
  Isa best = Isa::baseline;
  for (const Isa each : kIsas) {
    if (!cpu_has(each)) continue;
    if (asked && std::string_view(asked) == key_of(each)) return each;
    best = each;
  }
  if (asked && *asked)
    throw Error(cat("environment variable ATHANOR_CPU_ISA: \"", asked,
                    "\"; expected one that this CPU has: ", supported(), "; or leave it out"));
  return best;
}

Isa isa() {
  static const Isa value = choose_isa(std::getenv("ATHANOR_CPU_ISA"));
  return value;
}

}  // namespace athanor
