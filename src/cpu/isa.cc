#include "cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace athanor {
namespace {

// Values of ATHANOR_CPU_ISA.
const char* key_of(Isa isa) {
  constexpr const char* kKeys[] = {"baseline", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
  return kKeys[size_t(isa)];
}

std::string supported() {
  std::string all;
  for (const Isa each : kIsas)
    if (cpu_has(each)) all += cat(all.empty() ? "" : ", ", key_of(each));
  return all;
}

#if defined(__x86_64__)
// Intel, Architecture Instruction Set Extensions, ch. 3: CPUID leaf 7, EDX bits 22 (AMX-BF16) and 24 (AMX-TILE).
bool cpu_has_amx() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
}

// Checks bits 17 and 18 of XCR0: the system saves tiles. CPUs with AMX have XGETBV.
bool system_saves_tiles() {
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low >> 17 & 3) == 3;
}

// Requests permission for feature 18, tile data, for the whole process: ARCH_REQ_XCOMP_PERM [Linux,
// Documentation/arch/x86/xstate.rst].
bool may_use_tiles() {
  static const bool permitted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  return permitted;
}
#endif

}  // namespace

std::string amx_refusal() {
#if defined(__x86_64__)
  if (!cpu_has_amx()) return "";
  if (!system_saves_tiles()) return "the operating system does not save its tiles";
  if (!may_use_tiles()) return "the operating system gives no permission for tile data";
#endif
  return "";
}

const char* name_of(Isa isa) {
  constexpr const char* kNames[] = {"baseline", "AVX2", "AVX-512", "AVX-512 with bf16", "AMX with bf16"};
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
    case Isa::amx_bf16:
      return cpu_has(Isa::avx512_bf16) && cpu_has_amx() && amx_refusal().empty();
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
