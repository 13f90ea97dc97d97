// Warp-wide accesses of a gang that are not complete yet, and its sums.
#pragma once
#include <map>
#include <tuple>

#include "emulator/emulator.h"
namespace emu {

struct WarpAccess {
  unsigned lanes = 0;
  size_t bytes = 0;
  const void* address[32] = {};
};
struct GangCounters {
  KernelCounters sum;
  // by block, warp, call site, and how often the lane came through it
  std::map<std::tuple<uint32_t, uint32_t, const void*, uint32_t>, WarpAccess> open;
};
}  // namespace emu
