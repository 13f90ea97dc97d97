#include "model/int8_weights.h"

#include "base/error.h"
#include "config/choices.h"

namespace athanor {

void store_for_inference(Model& model, InferenceWeights form, const Recipe& recipe) {
  if (form == InferenceWeights::as_precision) return;
  const char* name = form == InferenceWeights::int8 ? "int8" : "llm_int8";
  if (has_experts(model.config().model_type))
    throw Error(cat("weights: ", name, " is not supported for experts (model_type ", name_of(model.config().model_type),
                    "); leave it out"),
                Exit::usage);
  if (recipe.low_precision())
    throw Error(
        cat("weights: ", name, " is not supported with precision ", recipe.name, "; take fp32, tf32, bf16 or fp16"),
        Exit::usage);
  ParamStore& params = model.params();
  std::vector<Param> matrices;
  for (int id = 0; id < int(params.specs().size()); ++id) {
    params.freeze_for_good({id});
    if (params.spec({id}).role == Role::matrix) matrices.push_back({id});
  }
  params.store_as(form == InferenceWeights::int8 ? StoredAs::int8 : StoredAs::int8_outliers, matrices);
}

}  // namespace athanor
