// Conversion of float data in files between dtypes, block by block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace athanor {

// dtype: f32, bf16 or f16.
void to_floats(std::span<const std::byte> bytes, DType dtype, std::vector<float>& out);

// Transposes a matrix with `rows` rows.
std::vector<float> transposed(std::span<const float> matrix, int64_t rows);

// Number of values that are NaN or infinite.
int64_t count_non_finite(std::span<const std::byte> bytes, DType dtype);

// Rounds to nearest even. A finite value outside the range of dtype (the maximum of f16 is 65504) is an Error naming
// `what`.
void from_floats(std::span<const float> values, DType dtype, std::string_view what, std::vector<std::byte>& out);

}  // namespace athanor
