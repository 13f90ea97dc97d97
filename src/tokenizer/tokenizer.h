// Text to token ids and back. What kinds there are, and how they are found in files, is in load.h.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

// Where a text stands: at the start of a document, behind a token, or in the middle of a text. Tokenizers in
// SentencePiece's manner put a space in front of the first word of a text.
enum class TextPlace : uint8_t { document, after_token, inside };

// Encodes with working memory of its own: one per thread. Outlived by its tokenizer.
class Encoder {
 public:
  virtual ~Encoder() = default;
  // Appends the ids of a text. Ids are the same wherever a text is cut at a place that last_cut() named, if what
  // follows the cut is `inside`.
  virtual void append(std::string_view text, std::vector<int32_t>& out, TextPlace place = TextPlace::document) = 0;
};

// A file that belongs to a tokenizer, to be kept beside what was made with it.
struct TokenizerFile {
  std::string name, content;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;    // the descriptor's "type"
  virtual int64_t vocab_size() const = 0;  // ids are [0, vocab_size)
  virtual int32_t eod_id() const = 0;      // end of document
  virtual std::unique_ptr<Encoder> encoder() const = 0;
  // The text of ids; throws on ids outside the vocabulary. Other places than `document` are for a text that is decoded
  // part by part: bytes stay as they are, since the rest of a character may follow; in a whole text those that are no
  // UTF-8 may become U+FFFD. No first space is taken away `inside`.
  virtual std::string decode(std::span<const int32_t> ids, TextPlace place = TextPlace::document) const = 0;
  // The last place in text[from, to] where the text may be cut without changing an id; `from` when there is none.
  // Where no place is safe in any text, cuts() is false.
  virtual size_t last_cut(std::string_view text, size_t from, size_t to) const = 0;
  virtual bool cuts() const { return true; }
  // What may have become of the texts so far in other programs; "" when nothing may differ.
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
