// What kernels' memory accesses may cost: counted ratios against a committed file, so that a change that makes accesses
// scattered or banks conflict is seen without a GPU.
#pragma once
#include <map>
#include <string>

#include "emulator/emulator.h"
namespace emu {

// Lines of the file: sectors of global memory per least number of sectors, passes over shared memory per least number
// of passes, kernel name; # begins a comment. Returns one line for each kernel that is above its budget, well below it
// (the budget is to be lowered then), or not listed; empty if all is well.
std::string compare_with_budget(const std::string& path, const std::map<std::string, KernelCounters>& counters);
}  // namespace emu
