// Pieces of bulk copies: what async.cc and tma.cc share. A piece is contiguous on both sides.
#pragma once
#include <atomic>
#include <vector>

#include "cuda/host/instructions.h"
#include "emulator/device/state.h"
namespace emu {

struct Piece {
  uint8_t* shared;
  uint8_t* global;        // null: outside the tensor
  uint32_t bytes, valid;  // size in shared memory; the part of it inside the tensor
};
void begin_load(Block& to_block, const std::vector<Piece>& pieces, unsigned number);
void finish_load(const std::vector<Piece>& pieces);
void queue_store(std::vector<Piece> pieces, void (*apply)(uint8_t* global, const uint8_t* shared, uint32_t bytes),
                 int access);

// Element-wise atomic additions, as the reductions of the async proxy are.
template <class T>
void add_elements(uint8_t* global, const uint8_t* shared, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += sizeof(T)) {
    T value, old, sum;
    memcpy(&value, shared + i, sizeof value);
    auto* p = reinterpret_cast<T*>(global + i);
    __atomic_load(p, &old, __ATOMIC_ACQUIRE);
    do {
      sum = T(float(old) + float(value));
    } while (!__atomic_compare_exchange(p, &old, &sum, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  }
}
using ApplyPiece = void (*)(uint8_t* global, const uint8_t* shared, uint32_t bytes);
inline ApplyPiece reduction_of(ptx::BulkReduction kind) {
  switch (kind) {
    case ptx::BulkReduction::kAddFloat32:
      return add_elements<float>;
    case ptx::BulkReduction::kAddFloat16:
      return add_elements<__half>;
    default:
      return add_elements<__nv_bfloat16>;
  }
}
}  // namespace emu
