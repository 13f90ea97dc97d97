// Unicode normalization forms, which some tokenizer files require as a first step.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace athanor {

enum class Form : uint8_t { nfc, nfd, nfkc, nfkd };

// The tables are those of Unicode 9.0, which the `tokenizers` package uses: newer characters are left alone. Invalid
// UTF-8 bytes are left alone and combine with nothing.
class NormalForm {
 public:
  explicit NormalForm(Form form);
  Form form() const { return form_; }
  // Appends the normal form of a text.
  void append(std::string_view text, std::string& out) const;
  std::string of(std::string_view text) const {
    std::string out;
    append(text, out);
    return out;
  }

 private:
  bool composes() const { return form_ == Form::nfc || form_ == Form::nfkc; }
  void add_decompositions();
  void find_active();
  uint8_t combining_class(uint32_t code) const;
  void decompose(uint32_t code, std::vector<uint32_t>& out) const;
  uint32_t compose(uint32_t first, uint32_t second) const;  // 0: they do not compose
  std::vector<uint32_t> normalized(const std::vector<uint32_t>& codes) const;
  void append_segment(std::string_view text, std::string& out) const;
  // True if the character may change, be reordered, or change the one before it.
  bool is_active(uint32_t code) const { return code < 0x110000 && active_[code]; }

  Form form_;
  uint8_t least_byte_ = 0;  // first byte of the smallest active character
  std::vector<bool> active_;
  std::unordered_map<uint32_t, std::vector<uint32_t>> decompositions_;  // one level deep
  std::unordered_map<uint64_t, uint32_t> compositions_;
};

}  // namespace athanor
