// Tokenizes conversations into shards with a loss mask and an index of documents: `athanor tokenize --chat-template`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/chat.h"
#include "tokenizer/load.h"

namespace athanor {

struct ChatOptions {
  std::vector<std::string> inputs;  // JSON lines
  std::string output_prefix;        // PREFIX_train.ds and PREFIX_val.ds, each with .index, .loss and .metadata
  TokenizerOptions tokenizer;
  ChatTemplate form = ChatTemplate::chatml;
  std::optional<ChatShape> shape;  // absent: detected for each line from its keys
  int64_t pack = 0;                // tokens per row into which whole conversations are packed; 0: no packing
  int64_t valid_every = 20;        // one in this many conversations goes to the validation split; 0: none
  bool overwrite = false;
};

// Returns a summary of a few lines. Conversations without an answer are skipped and counted; it is an Error if none has
// one. With `pack`, conversations longer than a row are truncated at the end, and the summary says how many.
std::string tokenize_chats(const ChatOptions&);

// Packs pieces of these sizes, each at most `length`, into rows of `length` tokens, by best fit with the largest first.
// Returns for each row the indices of its pieces.
std::vector<std::vector<size_t>> best_fit(const std::vector<int64_t>& sizes, int64_t length);

}  // namespace athanor
