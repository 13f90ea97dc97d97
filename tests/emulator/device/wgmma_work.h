// One wgmma of a warpgroup, from its first issuing thread to its execution.
#pragma once
#include <vector>

#include "cuda/host/instructions.h"
#include "emulator/device/state.h"
namespace emu {

struct WgmmaWork {
  ptx::Wgmma op;
  unsigned arrived = 0;
  bool done = false;
  float* d[128] = {};       // by thread: accumulator registers
  std::vector<uint32_t> a;  // [128, 4], if A comes from registers
};
}  // namespace emu
