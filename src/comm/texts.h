// Exchange of texts (a name, JSON) between ranks. Each call takes two collectives, one of them for the sizes.
#pragma once
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace athanor {

// The texts of all ranks, in rank order.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine);
// The first non-empty text in rank order, on all ranks; "": there is none.
std::string first_text(Communicator& ranks, const std::string& mine);
// Rank 0's text, on all ranks; those of the others are ignored.
std::string share_text(Communicator& ranks, const std::string& text);

}  // namespace athanor
