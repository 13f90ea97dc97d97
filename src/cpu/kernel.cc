// Chooses the kernels for this CPU.
#include "cpu/kernel.h"

#include <cstring>

namespace athanor {

const Kernels* kernels_avx512(bool pairs);
const Kernels* kernels_avx2();
const Kernels* kernels_baseline();

bool cpu_has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
#else
  return false;
#endif
}

const Kernels* kernels_named(const char* name) {
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
#if defined(__x86_64__)
  const bool v4 = cpu_has_avx512();
  if (is("AVX-512 with bf16") && v4 && __builtin_cpu_supports("avx512bf16")) return kernels_avx512(true);
  if (is("AVX-512") && v4) return kernels_avx512(false);
  if (is("AVX2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kernels_avx2();
#endif
  return is("baseline") ? kernels_baseline() : nullptr;
}

const Kernels& kernels() {
  for (const char* name : {"AVX-512 with bf16", "AVX-512", "AVX2"})
    if (const Kernels* found = kernels_named(name)) return *found;
  return *kernels_baseline();
}

}  // namespace athanor
