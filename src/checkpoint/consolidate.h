// Merges the files of a checkpoint that several ranks wrote into one file per kind of tensor.
#pragma once
#include <string>

namespace athanor {

// Verifies the checkpoint and writes it to root/step-N/ in the form in which a single rank saves. Returns that folder.
std::string consolidate_checkpoint(const std::string& folder, const std::string& root);

}  // namespace athanor
