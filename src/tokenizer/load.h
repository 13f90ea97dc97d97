// Finds and opens tokenizers: by name, by file, in a folder of a model, or by the descriptor beside shards.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/subword_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

struct TokenizerOptions {
  std::string source = "byte";              // "byte", a tokenizer file, or a folder that holds one
  std::string split;                        // rank files: built-in name or expression; "": by the number of ranks
  std::string eod;                          // text of the token at the end of a document; "": by the file
  std::vector<std::string> special_tokens;  // rank files: TEXT=ID
  bool allow_special = false;               // special tokens in a text are themselves, not ordinary text
};

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options);

// Whether a folder has a descriptor, or a tokenizer in a file of a name that says so.
bool has_tokenizer(const std::string& folder);

// From a descriptor, another tokenizer file, or a folder: its descriptor if it has one, else the file it has.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);
// What load_tokenizer(path) would be made of, for those who write tokenizers down in other forms. "byte" has no merges.
struct LoadedParts {
  SubwordParts parts;  // special tokens of a descriptor are among the added ones
  int32_t eod_id = -1;
};
LoadedParts load_tokenizer_parts(const std::string& path);

// By the descriptor in the folder of a shard; null when there is none.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& shard_path);

// The descriptor in the folder of a shard and the files that it names, as they are; nothing when there is none.
std::vector<TokenizerFile> tokenizer_files_beside(const std::string& shard_path);

// Writes the descriptor and the files that it names into a folder, each atomically, the descriptor last.
void write_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

}  // namespace athanor
