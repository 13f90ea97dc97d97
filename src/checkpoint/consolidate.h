// Makes one file per kind of tensor of a checkpoint that several ranks wrote in parts.
#pragma once
#include <string>

namespace athanor {

// Verifies the checkpoint and writes it to root/step-N/, a save folder, as one rank would have. Returns that folder.
std::string consolidate_checkpoint(const std::string& folder, const std::string& root);

}  // namespace athanor
