// Instruction sets of x86 for which the CPU backend has kernels. Other processors have the baseline alone.
#pragma once
#include <cstdint>

namespace athanor {

enum class Isa : uint8_t { baseline, avx2, avx512, avx512_bf16 };
constexpr Isa kIsas[] = {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16};  // ascending

const char* name_of(Isa);  // as in logs: "AVX2", "AVX-512 with bf16"
bool cpu_has(Isa);
// The best of this CPU, or the one asked for: a value of the environment variable ATHANOR_CPU_ISA, or null. Throws
// Error if this CPU lacks it.
Isa choose_isa(const char* asked);
Isa isa();  // what kernels use: the choice by ATHANOR_CPU_ISA

}  // namespace athanor
