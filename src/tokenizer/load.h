// Finds and opens tokenizers: by name, from a file, from a model folder, or by the descriptor next to shards.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/subword_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

struct TokenizerOptions {
  std::string source = "byte";              // "byte", a tokenizer file, or a folder that holds one
  std::string split;                        // rank files: name of a built-in pattern, or a regular expression; "": by
                                            // the number of ranks
  std::string eod;                          // text of the end-of-document token; "": the token that the file names
  std::vector<std::string> special_tokens;  // rank files: TEXT=ID
  bool allow_special = false;               // special tokens that occur in a text are encoded as such, not as ordinary
                                            // text
  bool forbid_special = false;              // not even if a descriptor says so
};

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options);

// True if a folder has a descriptor, or a tokenizer file under one of the known names.
bool has_tokenizer(const std::string& folder);

// Loads a descriptor, another tokenizer file, or a folder: its descriptor if it has one, else its tokenizer file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);
// The parts from which load_tokenizer(path) builds a tokenizer, for export to other formats. "byte" has no merges.
struct LoadedParts {
  SubwordParts parts;  // parts.added contains the special tokens of a descriptor
  int32_t eod_id = -1;
};
LoadedParts load_tokenizer_parts(const std::string& path);

// Loads the tokenizer named by the descriptor in the folder of a shard; null if there is no descriptor.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& shard_path);

// The descriptor in the folder of a shard and the files that it names, unparsed; empty if there is none.
std::vector<TokenizerFile> tokenizer_files_of(const std::string& shard_path);

// True if the descriptors in the folders of two shards name one tokenizer, or one of them is missing or unreadable.
bool same_tokenizer(const std::string& shard_path, const std::string& other_path);

// Writes the descriptor and its files into a folder, each atomically, the descriptor last.
void write_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

}  // namespace athanor
