#include "cpu/peak.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <set>
#include <vector>

#include "base/error.h"
#include "cpu/cores.h"

namespace athanor {
namespace {

// Time of a chain of dependent additions, one per cycle on any core; neither another hardware thread on the core nor
// the width of its units affects it.
double seconds_of_sums(int64_t rounds) {
  constexpr int kUnrolled = 16;
  uint64_t x = 1;
  const uint64_t y = uint64_t(rounds) | 1;  // in a register: additions of constants may take no cycle at all
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < rounds / kUnrolled; ++i)
    for (int k = 0; k < kUnrolled; ++k) {
      x += y;
      asm volatile("" : "+r"(x));
    }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Zen 4 (the part of AMD's family 25 that has AVX-512) executes 512-bit instructions in two passes.
bool halves_avx512() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAuth = 0x68747541;  // first 4 bytes of "AuthenticAMD"
  if (!__get_cpuid(0, &a, &b, &c, &d) || b != kAuth || !__get_cpuid(1, &a, &b, &c, &d)) return false;
  return (a >> 8 & 15) + (a >> 20 & 255) == 25;
#else
  return false;
#endif
}

// Maximum clock in Hz from a file in kHz; 0 if there is none.
double clock_limit() {
  std::ifstream in("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
  double khz = 0;
  return in >> khz ? khz * 1e3 : 0;
}

}  // namespace

double core_clock() {
  constexpr int64_t kSums = 1 << 17;  // some 40 us: shorter than the time between two interrupts
  constexpr int kTries = 100;
  double least = seconds_of_sums(kSums);
  for (int i = 1; i < kTries; ++i) least = std::min(least, seconds_of_sums(kSums));
  return std::max(double(kSums) / least, clock_limit());
}

double flops_per_cycle(Isa isa, DType operands) {
  if (operands == DType::bf16 && isa == Isa::amx_bf16) return 2 * 16 * 32;
  const int at_once = halves_avx512() ? 1 : 2;  // 512-bit instructions per cycle
  if (operands == DType::bf16 && isa == Isa::avx512_bf16) return 2 * 32 * at_once;
  if (isa >= Isa::avx512) return 2 * 16 * at_once;
  if (isa == Isa::avx2) return 2 * 8 * 2;
#if defined(__x86_64__)
  return 2 * 4 * 2;  // SSE2: two multiply and two add units, without FMA
#else
  return 4 * 4 * 2;  // four 128-bit units with FMA
#endif
}

int physical_cores(int threads, const std::string& cpus) {
  std::vector<cpu_set_t> mask(16);
  const size_t bytes = mask.size() * sizeof(cpu_set_t);
  if (sched_getaffinity(0, bytes, mask.data()) != 0) return threads;
  std::set<std::string> cores;
  for (size_t cpu = 0; cpu < 8 * bytes; ++cpu) {
    if (!CPU_ISSET_S(cpu, bytes, mask.data())) continue;
    std::ifstream in(cat(cpus, "/cpu", cpu, "/topology/thread_siblings_list"));
    std::string siblings;
    if (!std::getline(in, siblings)) siblings = cat(cpu);
    cores.insert(siblings);
  }
  return std::clamp(threads, 1, std::max(1, int(cores.size())));
}

double peak_flops(int threads, DType operands) {
  return physical_cores(threads) * flops_per_cycle(isa(), operands) * core_clock();
}

}  // namespace athanor
