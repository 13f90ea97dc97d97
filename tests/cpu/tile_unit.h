// AMX's tile unit in software, for CPUs without AMX: a SIGILL handler executes the instructions that the CPU refuses,
// so that the machine code of the kernels runs unchanged.
#pragma once
#include <cstdint>
#include <vector>

#include "cpu/kernel.h"

namespace athanor::testing {

constexpr int kTileRows = 16, kTileBytes = 64;

// TDPBF16PS [Intel 64 Software Developer's Manual, vol. 2]: c[rows, cols] += a[rows, units] b[units, cols], units being
// pairs of bf16; denormals count as zeros.
struct TileProduct {
  float* c;           // [rows][16]
  const uint32_t* a;  // [rows][16]
  const uint32_t* b;  // [units][16]
  int rows, cols, units;
};
void tile_product(const TileProduct&);

// The tables of every instruction set of this CPU, and AMX's also where the CPU has only AVX-512 with bf16.
std::vector<const Kernels*> all_kernels();

// Whether this thread has tiles configured in the emulation.
bool tiles_configured();
// Tile instructions carried out in software so far, in all threads.
int64_t emulated_instructions();

}  // namespace athanor::testing
