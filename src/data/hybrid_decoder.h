// Decoder of parquet's RLE/bit-packed hybrid integers [apache/parquet-format Encodings.md, "RLE/Bit-Packing Hybrid"],
// used for definition levels and dictionary indices. Decodes one value at a time, so that a hostile run length costs no
// memory.
#pragma once
#include <cstdint>
#include <string_view>

namespace athanor {

class HybridDecoder {
 public:
  HybridDecoder() = default;
  HybridDecoder(std::string_view bytes, int width);  // width: bits per value, 0 to 32
  uint32_t next();                                   // throws an Error at the end of the bytes

 private:
  void begin_run();

  std::string_view bytes_;
  int width_ = 0;
  bool packed_ = false;
  int64_t left_ = 0;    // values left in the current run
  uint32_t value_ = 0;  // value of a repeated run
  uint64_t bits_ = 0;   // packed run: the next `held_` bits, lowest first
  int held_ = 0;
};

}  // namespace athanor
