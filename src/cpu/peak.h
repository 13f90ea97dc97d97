// Theoretical peak FLOP/s of the cores, from their number, clock and vector width; MFU is relative to it. Measured GEMM
// rates would vary with the load of other users on a shared machine.
#pragma once
#include <string>

#include "cpu/isa.h"
#include "tensor/dtype.h"

namespace athanor {

// Maximum clock in Hz of this thread's core: measured for some milliseconds, or the kernel's reported limit if that is
// higher.
double core_clock();

// FLOP per cycle of one core, for f32 operands or, if the instruction set multiplies it, bf16. Assumes two units of the
// vector width (one 512-bit unit on Zen 4), which no core today exceeds; with AMX a TDPBF16PS of 16 x 16 x 32 in 16
// cycles.
double flops_per_cycle(Isa, DType operands);

// Physical cores that `threads` threads run on: at most the cores that the process may use; two hardware threads share
// a core.
int physical_cores(int threads, const std::string& cpus = "/sys/devices/system/cpu");

// Peak FLOP/s of `threads` threads.
double peak_flops(int threads, DType operands);

}  // namespace athanor
