// What cores cannot exceed, computed from their number, clock and vector width: MFU is a fraction of it. Measured rates
// of products would not do: on a shared machine they come and go with the neighbours.
#pragma once
#include <string>

namespace athanor {

// The greatest clock of this thread's core over some milliseconds, or of the kernel's files where that is more. Hz
double core_clock();

// FLOP in a cycle of one core, in f32: two units of this width that multiply and add, which no core today exceeds.
// instructions: instruction_set().
double flops_per_cycle(const std::string& instructions);

// Cores of so many threads: those that the process may use, of which two threads of a core share one.
int physical_cores(int threads, const std::string& cpus = "/sys/devices/system/cpu");

// FLOP/s of so many threads.
double peak_flops(int threads);

}  // namespace athanor
