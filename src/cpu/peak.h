// Theoretical peak FLOP/s of the cores, from their number, clock and vector width; MFU is relative to it. Measured GEMM
// rates would vary with the load of other users on a shared machine.
#pragma once
#include <string>

#include "cpu/isa.h"

namespace athanor {

// Maximum clock in Hz of this thread's core: measured over some milliseconds, or the kernel's reported limit if that is
// higher.
double core_clock();

// f32 FLOP per cycle of one core: two FMA units of the vector width, which no core today exceeds.
double flops_per_cycle(Isa);

// Physical cores that `threads` threads run on: at most the cores that the process may use; two hardware threads share
// a core.
int physical_cores(int threads, const std::string& cpus = "/sys/devices/system/cpu");

// Peak FLOP/s of `threads` threads.
double peak_flops(int threads);

}  // namespace athanor
