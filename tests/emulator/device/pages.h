// The size of the system's large pages, which hold the emulated memory where the system has them to give.
#pragma once
#include <cstddef>
namespace emu {

constexpr size_t kLargePage = size_t{2} << 20;  // of x86-64, and of most other systems with pages of 4 KiB
}  // namespace emu
