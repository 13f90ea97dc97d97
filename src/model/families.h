// The families and what their files share. A new family is one file and one line of the table in registry.cc.
#pragma once
#include "model/model.h"

namespace athanor {

std::unique_ptr<Model> make_gpt2(const ModelConfig&);
std::unique_ptr<Model> make_llama(const ModelConfig&);

// The residual stream ends in the final norm: its gradient from above is zero.
Var finish(Ctx&, std::pair<Var, Var> residual_and_norm);

}  // namespace athanor
