#include "tape/recipe.h"

#include <algorithm>
#include <iterator>

namespace athanor {

Recipe make_recipe(std::string_view name, DType master) {
  constexpr Recipe kRecipes[] = {
      {.name = "fp32", .compute = DType::f32, .master = DType::f32},
      {.name = "tf32", .compute = DType::f32, .master = DType::f32, .tf32 = true},
      {.name = "bf16", .compute = DType::bf16, .master = DType::f32},
      {.name = "fp16", .compute = DType::f16, .master = DType::f32, .loss_scaling = true},
  };
  const auto* row =
      std::find_if(std::begin(kRecipes), std::end(kRecipes), [&](const Recipe& r) { return r.name == name; });
  CHECK(row != std::end(kRecipes), "no precision recipe named ", name);
  Recipe recipe = *row;
  recipe.master = master;
  if (master != DType::f32 && recipe.compute != DType::bf16)
    throw Error(cat("master_weights: ", master == DType::i16 ? "split" : name_of(master),
                    " masters need precision bf16, got ", name, "; use master_weights fp32"),
                Exit::usage);
  return recipe;
}

}  // namespace athanor
