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
  std::optional<ChatShape> shape;  // absent: of each line by its members
  int64_t pack = 0;                // tokens of a row in which whole conversations are packed; 0: one after the other
  int64_t valid_every = 20;        // one of so many conversations is held out; 0: none
  bool overwrite = false;
};

// Returns a few lines of text. Conversations without an answer are left out and counted; an Error if none is left.
// With `pack` a longer conversation keeps its beginning, and the text says how many were cut.
std::string tokenize_chats(const ChatOptions&);

// Rows of `length` tokens for pieces of these sizes, each at most `length`, best fit for the largest first: for each
// row the numbers of its pieces.
std::vector<std::vector<size_t>> best_fit(const std::vector<int64_t>& sizes, int64_t length);

}  // namespace athanor
