// Cuts a text of tokens between characters, for fill-in-the-middle: decodes it, cuts, and encodes each part separately.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

// A place in [0, n], uniform up to 2^-32.
inline size_t uniform_place(uint32_t bits, size_t n) { return size_t((uint64_t(bits) * (n + 1)) >> 32); }

// Thread-safe.
class PartEncoder {
 public:
  explicit PartEncoder(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)), encoder_(tokenizer_->encoder()) {}

  struct Parts {
    std::vector<int32_t> prefix, middle, suffix;
  };
  using Places = std::array<uint32_t, 2>;  // random bits
  // Parts of a text, which have `left` tokens together: the end of the text is dropped. Both cuts are uniform over the
  // places between characters of the text's first `left` tokens; if prefix and middle then have more than `left`
  // tokens, over the places of fewer tokens. An invalid UTF-8 byte counts as a character. Empty if the text is too
  // short, or if decoding the parts does not reproduce the text.
  std::optional<Parts> cut(std::span<const int32_t> text, size_t left, const Places& places);

 private:
  // kept: number of bytes within which the text is cut. Returns no suffix if prefix and middle have more than `left`
  // tokens.
  Parts parts_of(std::string_view text, size_t kept, size_t left, const Places& places);
  std::vector<int32_t> encoded(std::string_view part);
  bool comes_back(const Parts& parts, std::string_view text) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::mutex mutex_;  // guards encoder_
  std::unique_ptr<Encoder> encoder_;
};

}  // namespace athanor
