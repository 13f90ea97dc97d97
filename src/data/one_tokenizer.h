// A folder has one tokenizer descriptor, for all shards in it: shards of a second tokenizer would be read with the
// wrong one.
#pragma once
#include <span>
#include <string>

#include "tokenizer/tokenizer.h"

namespace athanor {

// Throws Error(usage) if the folder's descriptor or a file of this tokenizer's name is that of another tokenizer,
// unless `overwrite` and the folder has no shards but own ones. own: what the base names of the shards begin with that
// the caller replaces.
void require_one_tokenizer(const std::string& folder, const Tokenizer& tokenizer, std::span<const std::string> own,
                           bool overwrite);

}  // namespace athanor
