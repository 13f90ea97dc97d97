// Floats of files from one dtype to another, block by block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace athanor {

// Any of f32, bf16, f16.
void to_floats(std::span<const std::byte> bytes, DType dtype, std::vector<float>& out);

// A matrix of so many rows.
std::vector<float> transposed(std::span<const float> matrix, int64_t rows);

// How many are NaN or infinite.
int64_t count_non_finite(std::span<const std::byte> bytes, DType dtype);

// Rounds to nearest even. A finite value that has no finite counterpart (f16 ends at 65504) is an Error naming `what`.
void from_floats(std::span<const float> values, DType dtype, std::string_view what, std::vector<std::byte>& out);

}  // namespace athanor
