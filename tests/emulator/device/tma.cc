// The tensor memory accelerator: tiles of tensors with up to five dimensions, swizzles, multicast.
#include "cuda/host/instructions.h"
#include "emulator/device/bulk.h"
#include "emulator/device/state.h"
namespace emu {
namespace {

using ptx::Coordinates;

TensorMap decode_map(const CUtensorMap* encoded, const Coordinates& tile) {
  require_capability(90, "cp.async.bulk.tensor");
  if (reinterpret_cast<uintptr_t>(encoded) % 64) fail(Fault::kMisaligned, "tensor map is not 64-byte aligned");
  TensorMap map;
  memcpy(&map, encoded, sizeof map);
  if (map.magic != kTensorMapMagic) fail(Fault::kConfigure, "TMA: not a tensor map from cuTensorMapEncodeTiled");
  if (map.rank != tile.rank) {
    fail(Fault::kConfigure, "TMA with %u coordinates on a tensor map of rank %u", tile.rank, map.rank);
  }
  const uint32_t inner = map.box[0] * map.element_bytes;
  if (map.swizzle && inner != map.swizzle) {
    fail(Fault::kRefused, "TMA: box of %u bytes in rows swizzled by %u; only equal sizes are emulated", inner,
         map.swizzle);
  }
  return map;
}

size_t swizzled(size_t address, uint32_t swizzle) {  // 32, 64, 128: one, two, three bits of the row move the chunk
  return address ^ (address >> 7 & (swizzle / 16 - 1)) << 4;
}

// The box in 16-byte pieces, in the order of shared memory.
std::vector<Piece> pieces_of(const TensorMap& map, uint8_t* shared, const Coordinates& tile) {
  check_aligned(shared, map.swizzle ? size_t{8} * map.swizzle : 128, "TMA shared address");
  uint8_t* window = window_owner(shared).window;
  const uint32_t inner = map.box[0] * map.element_bytes;
  uint64_t rows = 1;
  for (uint32_t d = 1; d < map.rank; ++d) rows *= map.box[d];
  std::vector<Piece> pieces;
  pieces.reserve(rows * inner / 16);
  size_t offset = size_t(shared - window);
  for (uint64_t row = 0; row < rows; ++row) {
    uint64_t rest = row;
    int64_t start = 0;
    bool inside = true;
    for (uint32_t d = 1; d < map.rank; ++d) {
      const int64_t at = tile.at[d] + int64_t(rest % map.box[d]);
      rest /= map.box[d];
      inside &= at >= 0 && at < int64_t(map.dims[d]);
      start += at * int64_t(map.strides[d]);
    }
    for (uint32_t x = 0; x < inner; x += 16, offset += 16) {
      const int64_t at = int64_t(tile.at[0]) * map.element_bytes + x;
      const int64_t room = int64_t(map.dims[0] * map.element_bytes) - at;
      const bool in = inside && at >= 0 && room > 0;
      const size_t to = map.swizzle ? swizzled(offset, map.swizzle) : offset;
      pieces.push_back(
          {window + to, in ? map.base + start + at : nullptr, 16, in ? uint32_t(room < 16 ? room : 16) : 0});
    }
  }
  return pieces;
}

void start_load(Block& to_block, std::vector<Piece> pieces, void* barrier) {
  Mbarrier& m = find_mbarrier(barrier, true);
  if (!m.fenced) fail(Fault::kProxy, "TMA on an mbarrier whose init was not followed by fence.mbarrier_init");
  if (!to_block.live) fail(Fault::kInFlight, "TMA multicast to a block that has exited");
  const unsigned number = to_block.next_async;
  begin_load(to_block, pieces, number);
  add_async(to_block, true, {[list = std::move(pieces), &to_block, &m, number] {
              finish_load(list);
              complete_bytes(to_block, m, int64_t(list.size()) * 16, number);
            }});
}

uint8_t* in_block(const Block& target, const void* shared) {  // the same offset in another block's window
  return target.window + (static_cast<const uint8_t*>(shared) - block().window);
}
}  // namespace
}  // namespace emu

namespace emu::ptx {

void tma_load(void* to, const CUtensorMap* map, uint64_t* barrier, const Coordinates& tile) {
  const TensorMap m = decode_map(map, tile);
  find_mbarrier(barrier, false);
  start_load(block(), pieces_of(m, static_cast<uint8_t*>(to), tile), barrier);
}

void tma_load_multicast(void* to, const CUtensorMap* map, uint64_t* barrier, uint16_t blocks, const Coordinates& tile) {
  const TensorMap m = decode_map(map, tile);
  Block& mine = block();
  if (!blocks || blocks >> mine.cluster->size) {
    fail(Fault::kConfigure, "TMA multicast to blocks %#x of a cluster of %u", blocks, mine.cluster->size);
  }
  for (uint32_t rank = 0; rank < mine.cluster->size; ++rank) {
    if (!(blocks >> rank & 1)) continue;
    Block& target = *mine.gang->blocks[rank];
    start_load(target, pieces_of(m, in_block(target, to), tile), in_block(target, barrier));
  }
}

void tma_store(const CUtensorMap* map, const void* from, const Coordinates& tile) {
  const TensorMap m = decode_map(map, tile);
  queue_store(pieces_of(m, static_cast<uint8_t*>(const_cast<void*>(from)), tile));
}
}  // namespace emu::ptx
