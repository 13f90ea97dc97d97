// Instruction sets of x86 for which the CPU backend has kernels. Other processors have the baseline alone.
#pragma once
#include <cstdint>
#include <string>

namespace athanor {

enum class Isa : uint8_t { baseline, avx2, avx512, avx512_bf16, amx_bf16 };
constexpr Isa kIsas[] = {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx_bf16};  // ascending

const char* name_of(Isa);  // as in logs: "AVX2", "AVX-512 with bf16"
// amx_bf16 also needs the operating system's permission for tile data, which is asked for here.
bool cpu_has(Isa);
// Why this process does not use the CPU's AMX: empty if it has none, or uses it.
std::string amx_refusal();
// The best of this CPU, or the one asked for: a value of the environment variable ATHANOR_CPU_ISA, or null. Throws
// Error if this CPU lacks it.
Isa choose_isa(const char* asked);
Isa isa();  // what kernels use: the choice by ATHANOR_CPU_ISA

}  // namespace athanor
