// The model families and their shared functions. A new family is one file and one line of the table in registry.cc.
#pragma once
#include "model/model.h"

namespace athanor {

std::unique_ptr<Model> make_gpt2(const ModelConfig&);
std::unique_ptr<Model> make_llama(const ModelConfig&);
std::unique_ptr<Model> make_vit(const ModelConfig&);

// Ends the residual stream after the final norm: returns the norm; the gradient of the residual is zero.
Var finish(Ctx&, std::pair<Var, Var> residual_and_norm);

}  // namespace athanor
