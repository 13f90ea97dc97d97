// Matrices as packed integers with scales, in the "pack-quantized" format of compressed-tensors: value = integer *
// scale. A matrix "NAME" [out, in], with one scale per group of a row, is stored as
//   NAME_packed  i32 [out, in bits / 32 rounded up]   integers + 2^(bits - 1), the first in the lowest bits
//   NAME_scale   bf16 [out, groups]
//   NAME_shape   i64 [2]
// Only the linear layers of blocks are packed; embeddings, the head, norms and biases keep their dtype.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "tensor/tensor.h"

namespace athanor {

class ModelFolder;

struct IntGroups {
  int bits = 4;       // 4 or 8: integers do not cross 32-bit words
  int64_t group = 0;  // values of a row that share a scale; 0 = the whole row
};
std::optional<int> int_bits_named(std::string_view name);  // "w4a16", "w8a16"

std::string packed_name(const std::string& weight);
std::string packed_scale_name(const std::string& weight);
std::string packed_shape_name(const std::string& weight);
Shape packed_shape(const Shape& matrix, IntGroups);
Shape packed_scale_shape(const Shape& matrix, IntGroups);
// Derives bits and group size from the shapes of the stored tensors; nullopt if they are inconsistent.
std::optional<IntGroups> packed_groups(const Shape& matrix, const Shape& packed, const Shape& scales);

// "quantization_config" for config.json, a JSON object. floats: names of modules that are not quantized.
std::string quantization_config_json(IntGroups, const std::vector<std::string>& floats);

// The three tensors, computed block by block. The folder must outlive them. Throws Error(usage) if rows do not consist
// of whole groups.
std::vector<TensorData> packed_matrix(const ModelFolder&, const std::string& weight, IntGroups);

// Dequantizes whole rows to f32. columns: columns of the matrix.
void unpack_rows(std::span<const std::byte> packed, std::span<const float> scales, int64_t columns, IntGroups,
                 std::vector<float>& out);

}  // namespace athanor
