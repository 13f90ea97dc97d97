// Names of weight dtypes on the command line.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace athanor {

inline std::vector<std::string> float_names() { return {"same", "f32", "bf16", "f16"}; }

// Returns nullopt for "same".
inline std::optional<DType> float_named(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    if (name == name_of(dtype)) return dtype;
  return std::nullopt;
}

}  // namespace athanor
