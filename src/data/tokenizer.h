// Text to token ids and back, and the descriptor file that says which tokenizer made a folder's shards.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;    // the descriptor's "type"
  virtual int64_t vocab_size() const = 0;  // ids are [0, vocab_size)
  virtual int32_t eod_id() const = 0;      // end of document
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;  // throws on ids outside the vocabulary
};

inline constexpr const char* kTokenizerFile =
    "tokenizer.athanor.json";  // {"type": "byte", "vocab_size": 257, "eod_id": 256}

// By name ("byte"); an Error(usage) that lists the names for any other.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name);

// From a descriptor file, or from the folder that holds one.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);
// The same for the folder of a shard; null when there is no descriptor beside it.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& shard_path);

// The descriptor's text.
std::string tokenizer_descriptor(const Tokenizer& tokenizer);
// Writes folder/tokenizer.athanor.json, atomically.
void write_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

}  // namespace athanor
