// Texts from rank to rank: a name, a JSON. Each takes two collectives, one for the sizes.
#pragma once
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace athanor {

// The texts of all ranks, in their order.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine);
// The text of the first rank that has one, on all ranks; "": none has.
std::string first_text(Communicator& ranks, const std::string& mine);
// Rank 0's text, on all ranks; what the others give is not read.
std::string share_text(Communicator& ranks, const std::string& text);

}  // namespace athanor
