// Barriers, votes, shuffles, matches and reductions. Shuffles and votes order no memory, as on a GPU.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cuda/host/thread.h"
namespace emu {

// A warp collective is a rendezvous: every lane of `mask` provides its input and output; the last one runs `finish`.
struct Lanes {
  const void* in[32];
  void* out[32];
  unsigned mask;
};
using Finish = void (*)(Lanes&);
enum class Collective { kShuffle, kVote, kReduce, kMatch, kSyncwarp, kLdmatrix, kMma, kSetmaxnreg };
void warp_collective(Collective kind, unsigned mask, const void* in, void* out, Finish finish);

struct ShuffleInput {
  uint64_t value;
  int source;  // lane to read, -1: the lane keeps its own value
};
void finish_shuffle(Lanes& lanes);
void finish_vote(Lanes& lanes);
void finish_match_any(Lanes& lanes);
void syncwarp(unsigned mask);
void block_barrier(const char* file, int line);
void fence();

template <class T>
T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "shuffles move at most 8 bytes");
  ShuffleInput in{0, source};
  uint64_t out = 0;
  memcpy(&in.value, &value, sizeof value);
  warp_collective(Collective::kShuffle, mask, &in, &out, finish_shuffle);
  T result;
  memcpy(&result, &out, sizeof result);
  return result;
}
inline unsigned ballot(unsigned mask, bool predicate) {
  unsigned result = 0;
  warp_collective(Collective::kVote, mask, &predicate, &result, finish_vote);
  return result;
}
template <class T>
EMU_UNINSTRUMENTED void finish_min(Lanes& lanes) {
  T least = std::numeric_limits<T>::max();
  for (int i = 0; i < 32; ++i) {
    if (!(lanes.mask >> i & 1)) continue;
    const T value = *static_cast<const T*>(lanes.in[i]);
    least = value < least ? value : least;
  }
  for (int i = 0; i < 32; ++i)
    if (lanes.mask >> i & 1) *static_cast<T*>(lanes.out[i]) = least;
}
template <class T>
T reduce_min(unsigned mask, T value) {
  static_assert(sizeof(T) == 4, "redux.sync works on 32-bit integers");
  T out{};
  warp_collective(Collective::kReduce, mask, &value, &out, finish_min<T>);
  return out;
}
}  // namespace emu

// ---- barriers and fences
inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emu::block_barrier(file, line);
}
inline void __syncwarp(unsigned mask = ~0u) { emu::syncwarp(mask); }
inline void __threadfence() { emu::fence(); }
inline void __threadfence_system() { emu::fence(); }

// ---- shuffles: segments of `width` lanes; a lane without a source keeps its own value
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = emu::self()->lane;
  return emu::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = emu::self()->lane, source = lane ^ bits;
  return emu::shuffle(mask, value, source / width > lane / width ? -1 : source);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = emu::self()->lane, source = lane - int(delta);
  return emu::shuffle(mask, value, source < (lane & ~(width - 1)) ? -1 : source);
}

// ---- votes, matches, reductions
inline unsigned __ballot_sync(unsigned mask, int p) { return emu::ballot(mask, p != 0); }
inline int __any_sync(unsigned mask, int p) { return emu::ballot(mask, p != 0) != 0; }
inline int __all_sync(unsigned mask, int p) { return emu::ballot(mask, p != 0) == mask; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "match.sync compares 4 or 8 bytes");
  uint64_t in = 0;
  unsigned out = 0;
  memcpy(&in, &value, sizeof value);
  emu::warp_collective(emu::Collective::kMatch, mask, &in, &out, emu::finish_match_any);
  return out;
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return emu::reduce_min(mask, v); }
inline int __reduce_min_sync(unsigned mask, int v) { return emu::reduce_min(mask, v); }
