// The tokens that end a text of a published model. Instruction-tuned models have several: the end of a turn, and the
// end of a document.
#pragma once
#include <cstdint>
#include <vector>

#include "convert/model_folder.h"

namespace athanor {

// eos_token_id of the folder's generation_config.json, else of its config.json, else of the base of adapters; empty if
// none has it.
std::vector<int32_t> end_tokens(const ModelFolder& model);
// All eos_token_id of the folder's config.json, else of the base of adapters; ModelConfig::eos_token_id is the first.
std::vector<int32_t> config_end_tokens(const ModelFolder& model);

}  // namespace athanor
