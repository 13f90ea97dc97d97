// LoRA adapters of a model's linear layers: freezes all weights and declares matrices A and B for the chosen layers.
// nn/adapters.h computes with them.
#pragma once
#include <string>

#include "base/lora.h"
#include "model/model.h"

namespace athanor {

// Returns the module of a weight's file name: "model.layers.0.self_attn.q_proj" for
// "model.layers.0.self_attn.q_proj.weight".
std::string module_of(const std::string& weight);
// Names of the adapters' matrices in files: [rank, inputs] and [outputs, rank], whatever the order of the weight.
std::string lora_a_name(const std::string& module);
std::string lora_b_name(const std::string& module);
std::string lora_magnitude_name(const std::string& module);  // [outputs], for DoRA

// Call after declare() and before plan(). Freezes all weights, with routers, their biases and routed experts, which
// have no adapters. Stores all linear layers and experts in the form LoraOptions::base. Throws an Error(usage) naming
// targets that match no linear layer.
void add_adapters(Model&, const LoraOptions&);

}  // namespace athanor
