// Floats of files from one dtype to another, block by block.
#pragma once
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace athanor {

// Any of f32, bf16, f16.
void to_floats(std::span<const std::byte> bytes, DType dtype, std::vector<float>& out);

// Rounds to nearest even. A finite value that has no finite counterpart (f16 ends at 65504) is an Error naming `what`.
void from_floats(std::span<const float> values, DType dtype, std::string_view what, std::vector<std::byte>& out);

}  // namespace athanor
