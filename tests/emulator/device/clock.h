// Vector clocks: what a CUDA thread may rely on. Inside its block a thread knows ticks by thread; of other blocks it
// knows snapshots of their ticks, shared between all who learned the same.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>
namespace emu {

// Ticks by thread of one block, then two of its asynchronous engine: shared-memory side, writes to global memory.
using Ticks = std::vector<uint32_t>;
constexpr uint32_t kAsyncShared = 0, kAsyncGlobal = 1, kAsyncEngines = 2;
void join(Ticks& into, const Ticks& from);

using Knowledge = std::map<uint32_t, std::shared_ptr<const Ticks>>;  // by block number
using Others = std::shared_ptr<const Knowledge>;                     // null: nothing
void join(Others& into, const Others& from);

struct Clock {  // what a synchronisation object of one block carries
  Ticks own;
  Others others;
};

// A stamp names one access: valid | atomic | async proxy | operation:15 | block:16 | thread:11 | tick:19.
// Launches that would not fit are refused by name in check builds.
constexpr uint64_t kStampValid = 1ull << 63, kStampAtomic = 1ull << 62, kStampProxy = 1ull << 61;
constexpr uint32_t kMaxTick = 0x7ffff, kMaxBlocks = 65536;
struct StampFields {
  uint32_t operation, block, thread, tick;
};
inline uint64_t make_stamp(const StampFields& f) {
  return kStampValid | uint64_t(f.operation & 0x7fff) << 46 | uint64_t(f.block & 0xffff) << 30 |
         uint64_t(f.thread & 0x7ff) << 19 | (f.tick & kMaxTick);
}
inline StampFields stamp_fields(uint64_t s) {
  return {uint32_t(s >> 46 & 0x7fff), uint32_t(s >> 30 & 0xffff), uint32_t(s >> 19 & 0x7ff), uint32_t(s & kMaxTick)};
}
}  // namespace emu
