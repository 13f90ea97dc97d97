// Instruction sets of x86 for which the CPU backend has kernels. Other processors have the baseline alone.
#pragma once
#include <cstdint>
#include <string>

namespace athanor {

enum class Isa : uint8_t { baseline, avx2, avx512, avx512_bf16, amx_bf16 };
constexpr Isa kIsas[] = {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx_bf16};  // ascending

const char* name_of(Isa);  // as in logs: "AVX2", "AVX-512 with bf16"
// For amx_bf16 this also requests the operating system's permission to use tile data.
bool cpu_has(Isa);
// Reason why this process does not use the CPU's AMX; empty if it uses AMX or the CPU has none.
std::string amx_refusal();
// Returns the best instruction set of this CPU, or the one named by `asked`, a value of the environment variable
// ATHANOR_CPU_ISA, if it is not null. Throws Error if this CPU lacks it.
Isa choose_isa(const char* asked);
Isa isa();  // the one that kernels use, after ATHANOR_CPU_ISA

}  // namespace athanor
