// Parquet's hybrid of run-length and bit-packed integers [apache/parquet-format Encodings.md, "RLE/Bit-Packing
// Hybrid"]: definition levels and dictionary indices. Decodes one value at a time, so that hostile counts cost no
// memory.
#pragma once
#include <cstdint>
#include <string_view>

namespace athanor {

class HybridDecoder {
 public:
  HybridDecoder() = default;
  HybridDecoder(std::string_view bytes, int width);  // width: bits of a value, 0 to 32
  uint32_t next();                                   // an Error where the bytes end

 private:
  void begin_run();

  std::string_view bytes_;
  int width_ = 0;
  bool packed_ = false;
  int64_t left_ = 0;    // values of the run that are left
  uint32_t value_ = 0;  // repeated
  uint64_t bits_ = 0;   // of a packed run: the next `held_` bits, the lowest first
  int held_ = 0;
};

}  // namespace athanor
