// A folder has one tokenizer descriptor, for all shards in it: shards of a second tokenizer would be read with the
// wrong one.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

// Throws Error(usage) if the folder's descriptor or a file of this tokenizer's name is that of another tokenizer,
// unless `overwrite` and the folder has no shards but own ones. own: what the base names of the shards begin with that
// the caller replaces.
void require_one_tokenizer(const std::string& folder, const Tokenizer& tokenizer, std::span<const std::string> own,
                           bool overwrite);

// The tokenizer of shards that are about to be published, written into their folder. Without keep() the destructor
// removes the files that were not there before, unless the folder has shards.
class TokenizerOfShards {
 public:
  TokenizerOfShards(const Tokenizer& tokenizer, const std::string& folder);
  TokenizerOfShards(const TokenizerOfShards&) = delete;
  TokenizerOfShards& operator=(const TokenizerOfShards&) = delete;
  ~TokenizerOfShards();
  void keep() { added_.clear(); }

 private:
  void remove() const;

  std::string folder_;
  std::vector<std::string> added_;  // paths, the descriptor first
};

}  // namespace athanor
