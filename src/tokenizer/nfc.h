// Unicode normalization form C (NFC), which some tokenizer files require as the first step. It merges different
// encodings of the same character; other normalizers are not here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace athanor {

// The tables are those of Unicode 9.0, which the `tokenizers` package uses: newer characters are left alone. Invalid
// UTF-8 bytes are left alone and combine with nothing.
class Nfc {
 public:
  Nfc();
  // Appends the NFC form of a text.
  void append(std::string_view text, std::string& out) const;
  std::string of(std::string_view text) const {
    std::string out;
    append(text, out);
    return out;
  }

 private:
  struct Decomposition {
    uint32_t first, second;
  };
  uint8_t combining_class(uint32_t code) const;
  void decompose(uint32_t code, std::vector<uint32_t>& out) const;
  uint32_t compose(uint32_t first, uint32_t second) const;  // 0: they do not compose
  void append_segment(std::string_view text, std::string& out) const;
  // Whether the character may change, be reordered, or change the one before it.
  bool is_active(uint32_t code) const { return code >= 0x300 && code < 0x110000 && active_[code]; }

  std::vector<bool> active_;
  std::unordered_map<uint32_t, Decomposition> decompositions_;
  std::unordered_map<uint64_t, uint32_t> compositions_;
};

}  // namespace athanor
