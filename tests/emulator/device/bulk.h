// Pieces of tiles: what async.cc and tma.cc share. A piece is contiguous on both sides.
#pragma once
#include <vector>

#include "emulator/device/state.h"
namespace emu {

struct Piece {
  uint8_t* shared;
  uint8_t* global;        // null: outside the tensor
  uint32_t bytes, valid;  // size in shared memory; the part of it inside the tensor
};
void begin_load(Block& to_block, const std::vector<Piece>& pieces, unsigned number);
void finish_load(const std::vector<Piece>& pieces);
void queue_store(std::vector<Piece> pieces);
}  // namespace emu
