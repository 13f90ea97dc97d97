// Formats of token shards: the result of inspecting a file (TokenLayout), and one reader function per format. The list
// of formats is in token_file.cc; byte layouts are described in data/README.md.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "data/document_index.h"
#include "data/image_file.h"
#include "data/stable_file.h"

namespace athanor {

constexpr int64_t kLlmcHeaderBytes = 1024;  // header bytes of llm.c and LLMQ

enum class TokenType : uint8_t { u8, i8, u16, i16, u32, i32, u64, i64, f32, f64 };
int64_t item_size(TokenType);
std::string_view name_of(TokenType);  // "uint16", ...
// The type named by a data source's dtype; empty for "auto". Throws Error(usage) for an unknown name.
std::optional<TokenType> token_type(std::string_view dtype);

// Loss mask: one value per token, 1 = its prediction counts, 0 = it is ignored.
struct LossMask {
  std::optional<StableFile> file;  // absent: the shard's own file
  int64_t offset = 0;              // bytes before the first value
  bool is_bits = false;            // one bit per token, lowest bit first; otherwise one byte per token
};

// Location of the tokens in a file and all that reading needs to know about its format.
struct TokenLayout {
  std::string format;  // "llm.c-v1", "raw-uint16", "megatron-uint16", ...
  int64_t offset = 0;  // bytes before the first token
  TokenType type = TokenType::u16;
  int64_t count = 0;  // tokens
  std::optional<DocumentIndex> documents = {};
  std::optional<LossMask> mask = {};
  std::optional<ImageFormat> images = {};  // a shard of images, whose bytes count as tokens
};

// Input of a format's reader: the open file, its first bytes, and the user's dtype.
struct Probe {
  const StableFile& file;
  std::string_view head;
  std::optional<TokenType> dtype;

  const std::string& path() const { return file.path(); }
  int32_t word(size_t index) const;  // int32 at index `index` of the head; 0 beyond its end
  // Throws Error(usage) if the user gave another type than the file has.
  void require_dtype(TokenType found) const;
};

// Headerless tokens read with half their width have a small number at every second position. Returns a warning if that
// is so, else "". `tokens`: some consecutive tokens, read with the type of `layout`.
std::string doubt_of_type(const TokenLayout& layout, std::span<const int32_t> tokens);

bool file_exists(const std::string& path);
// Replaces the extension: "a/b.bin", ".idx" -> "a/b.idx".
std::string with_extension(const std::string& path, std::string_view extension);

TokenLayout read_llmc_v1(const Probe&);   // llm.c, modded-nanogpt: uint16
TokenLayout read_llmc_v7(const Probe&);   // llm.c's Llama 3: uint32
TokenLayout read_llmq(const Probe&);      // LLMQ, with its loss mask
TokenLayout read_megatron(const Probe&);  // Megatron-LM: the .bin, with the .idx next to it
TokenLayout read_nanotron(const Probe&);  // datatrove, nanotron: .ds, with .ds.index and .ds.metadata next to it
TokenLayout read_numpy(const Probe&);     // a NumPy array of integers
TokenLayout read_images(const Probe&);    // labelled images: image_file.h
TokenLayout read_raw(const Probe&);       // headerless: nanoGPT, OLMo

}  // namespace athanor
