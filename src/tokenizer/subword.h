// What the models of subwords have in common: an encoder of pieces, and what becomes of characters that are no tokens.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace athanor {

// Encodes pieces of text on their own, with working memory of its own: one per thread. Outlived by its model.
class PieceEncoder {
 public:
  static constexpr size_t kBatch = 32;  // pieces that are best given at once
  virtual ~PieceEncoder() = default;
  virtual void append(std::span<const std::string_view> pieces, std::vector<int32_t>& out) = 0;
};

// How a character that is no token is encoded.
struct Unknown {
  std::array<int32_t, 256> bytes;  // tokens of its bytes; all -1: it becomes `token`
  int32_t token = -1;
  bool fused = true;  // neighbours become one `token`

  Unknown() { bytes.fill(-1); }
  bool has_bytes() const { return bytes[0] >= 0; }
  // after_unknown: the text before it was one too.
  void append(std::string_view text, bool after_unknown, std::vector<int32_t>& out) const {
    if (has_bytes())
      for (const char byte : text) out.push_back(bytes[uint8_t(byte)]);
    else if (!(after_unknown && fused))
      out.push_back(token);
  }
};

}  // namespace athanor
