// Interface of tokenizers: text to token ids and back. The implementations, and how they are found in files, are in
// load.h.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

// Position of a text: at the start of a document, after a token, or in the middle of a text. SentencePiece-style
// tokenizers put a space in front of the first word of a text.
enum class TextPlace : uint8_t { document, after_token, inside };

// Encodes text. It owns scratch memory, so use one per thread. The tokenizer must outlive it.
class Encoder {
 public:
  virtual ~Encoder() = default;
  // Appends the ids of a text. A text cut at places returned by last_cut() gives the same ids, if the text after each
  // cut is encoded with place `inside`.
  virtual void append(std::string_view text, std::vector<int32_t>& out, TextPlace place = TextPlace::document) = 0;
};

// A file of a tokenizer, stored next to data made with it.
struct TokenizerFile {
  std::string name, content;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;    // "type" of the descriptor
  virtual int64_t vocab_size() const = 0;  // ids are [0, vocab_size)
  virtual int32_t eod_id() const = 0;      // end-of-document token
  virtual std::unique_ptr<Encoder> encoder() const = 0;
  // Decodes ids; throws if an id is outside the vocabulary. For a text decoded in parts, use other places than
  // `document`: then bytes stay as they are, because the rest of a character may follow, whereas in a whole text
  // invalid UTF-8 may become U+FFFD. With `inside`, no leading space is removed.
  virtual std::string decode(std::span<const int32_t> ids, TextPlace place = TextPlace::document) const = 0;
  // The last place in text[from, to] where the text may be cut without changing any id; `from` if there is none. cuts()
  // is false if no place is ever safe.
  virtual size_t last_cut(std::string_view text, size_t from, size_t to) const = 0;
  virtual bool cuts() const { return true; }
  // A warning if other programs may tokenize the texts seen so far differently; else "".
  virtual std::string caveat() const { return ""; }
  // The descriptor (load.h) first, then the files that it names.
  virtual const std::vector<TokenizerFile>& files() const = 0;

  std::vector<int32_t> encode(std::string_view text, TextPlace place = TextPlace::document) const {
    std::vector<int32_t> ids;
    encoder()->append(text, ids, place);
    return ids;
  }
};

}  // namespace athanor
