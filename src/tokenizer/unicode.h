// UTF-8 and the character classes used by split patterns (Unicode 16.0). Every invalid UTF-8 byte is treated as a
// character without a class.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace athanor {

// Bit flags, since patterns use unions of classes. Zero is everything else: punctuation, symbols, controls, invalid
// bytes.
enum CharClass : uint8_t {
  kUpper = 1,     // \p{Lu}, \p{Lt}
  kLower = 2,     // \p{Ll}
  kCaseless = 4,  // \p{Lm}, \p{Lo}
  kMark = 8,      // \p{M}
  kNumber = 16,   // \p{N}
  kSpace = 32,    // \s: White_Space
  kNewline = 64,  // \r and \n, which are kSpace too
  kLetter = kUpper | kLower | kCaseless,
};

struct Char {
  uint32_t code = 0;  // kInvalidByte | byte for an invalid UTF-8 byte
  uint8_t bytes = 1;
};
inline constexpr uint32_t kInvalidByte = 0x80000000u;

// Decodes the character at text[at], at < text.size(). Overlong forms, surrogates and values above 0x10ffff are invalid
// bytes.
Char char_at(std::string_view text, size_t at);
// Returns where the character that ends at `end` begins; end > 0.
size_t char_before(std::string_view text, size_t end);
void append_utf8(std::string& out, uint32_t code);  // any Unicode scalar value
// True if the `tokenizers` package treats the character as punctuation: \p{P} of an old Unicode, and all symbols of
// ASCII.
bool is_punctuation(uint32_t code);

// The class of every code point, expanded from run-length tables to 1.1 MB, little of which one language touches.
class CharTable {
 public:
  CharTable();
  // Class and size in bytes of the character at text[at].
  struct Entry {
    uint8_t kind, bytes;
  };
  Entry at(std::string_view text, size_t at) const {
    const auto byte = uint8_t(text[at]);
    if (byte < 0x80) return {classes_[byte], 1};
    const Char c = char_at(text, at);
    return {c.code < kCodePoints ? classes_[c.code] : uint8_t{0}, c.bytes};
  }
  uint8_t of(uint32_t code) const { return code < kCodePoints ? classes_[code] : uint8_t{0}; }

 private:
  static constexpr uint32_t kCodePoints = 0x110000;
  std::unique_ptr<uint8_t[]> classes_;
};

}  // namespace athanor
