// What is known about the formats of token shards: the result of looking at a file (TokenLayout), and one reader
// function per format. The list of formats is in token_file.cc; their byte layouts are described in data/README.md.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/document_index.h"
#include "data/stable_file.h"

namespace athanor {

enum class TokenType : uint8_t { u8, i8, u16, i16, u32, i32, u64, i64, f32, f64 };
int64_t item_size(TokenType);
std::string_view name_of(TokenType);  // "uint16", ...
// The type that a data source's dtype names; nothing for "auto". Throws Error(usage) for a word that is neither.
std::optional<TokenType> token_type(std::string_view dtype);

// Which tokens are to be predicted: one value per token, 1 = its prediction counts, 0 = it is ignored.
struct LossMask {
  std::optional<StableFile> file;  // absent: the shard's own file
  int64_t offset = 0;              // bytes before the first value
  bool is_bits = false;            // eight in a byte, the lowest bit first; otherwise a byte each
};

// Where the tokens lie in a file and what is known about them; all that reading needs to know about a format.
struct TokenLayout {
  std::string format;  // "llm.c-v1", "raw-uint16", "megatron-uint16", ...
  int64_t offset = 0;  // bytes before the first token
  TokenType type = TokenType::u16;
  int64_t count = 0;  // tokens
  std::optional<DocumentIndex> documents = {};
  std::optional<LossMask> mask = {};
};

// What a format's reader may look at: the open file, its first bytes, and what the user said about it.
struct Probe {
  const StableFile& file;
  std::string_view head;
  std::optional<TokenType> dtype;

  const std::string& path() const { return file.path(); }
  int32_t word(size_t index) const;  // int32 number `index` of the head; 0 beyond its end
  // Throws Error(usage) where the user named another type than the file does.
  void require_dtype(TokenType found) const;
};

bool file_exists(const std::string& path);
// PATH with another end after its last dot: "a/b.bin", ".idx" -> "a/b.idx".
std::string with_extension(const std::string& path, std::string_view extension);

TokenLayout read_llmc_v1(const Probe&);   // llm.c, modded-nanogpt: uint16
TokenLayout read_llmc_v7(const Probe&);   // llm.c's Llama 3: uint32
TokenLayout read_llmq(const Probe&);      // LLMQ, with its loss mask
TokenLayout read_megatron(const Probe&);  // Megatron-LM: the .bin, with the .idx beside it
TokenLayout read_nanotron(const Probe&);  // datatrove, nanotron: .ds, with .ds.index and .ds.metadata beside it
TokenLayout read_numpy(const Probe&);     // a NumPy array of integers
TokenLayout read_raw(const Probe&);       // headerless: nanoGPT, OLMo

}  // namespace athanor
