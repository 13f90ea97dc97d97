// Low-rank adapters of a model's linear layers: freezes all its weights and declares matrices A and B beside those that
// are chosen. What layers compute with them is in nn/adapters.h.
#pragma once
#include <string>

#include "base/lora.h"
#include "model/model.h"

namespace athanor {

// The module that a weight of a file belongs to: "model.layers.0.self_attn.q_proj" of "....q_proj.weight".
std::string module_of(const std::string& weight);
// Names of the adapters' matrices in files: [rank, inputs] and [outputs, rank], whatever the order of the weight.
std::string lora_a_name(const std::string& module);
std::string lora_b_name(const std::string& module);
std::string lora_magnitude_name(const std::string& module);  // [outputs], of DoRA

// After declare(), before the plan; stores all frozen linear layers as LoraOptions::base says. An Error(usage) names
// targets that match no linear layer.
void add_adapters(Model&, const LoraOptions&);

}  // namespace athanor
