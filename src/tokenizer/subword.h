// Common parts of the subword models: the encoder interface, and the encoding of characters that are no tokens.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace athanor {

// Encodes pieces independently of each other. It owns scratch memory, so use one per thread. The model must outlive it.
class PieceEncoder {
 public:
  static constexpr size_t kBatch = 32;  // preferred number of pieces per call
  virtual ~PieceEncoder() = default;
  virtual void append(std::span<const std::string_view> pieces, std::vector<int32_t>& out) = 0;
};

// Encoding of a character that is no token.
struct Unknown {
  std::array<int32_t, 256> bytes;  // tokens of the bytes (byte fallback); all -1: the character becomes `token`
  int32_t token = -1;
  bool fused = true;  // consecutive unknown characters become a single `token`

  Unknown() { bytes.fill(-1); }
  bool has_bytes() const { return bytes[0] >= 0; }
  // after_unknown: the text before it was unknown, too.
  void append(std::string_view text, bool after_unknown, std::vector<int32_t>& out) const {
    if (has_bytes())
      for (const char byte : text) out.push_back(bytes[uint8_t(byte)]);
    else if (!(after_unknown && fused))
      out.push_back(token);
  }
};

}  // namespace athanor
