// Matrices in packed integers with scales, as compressed-tensors' "pack-quantized" files have them: value = code *
// scale. Of a matrix "NAME" [out, in], each group of a row has one scale:
//   NAME_packed  i32 [out, in bits / 32 rounded up]   codes + 2^(bits - 1), the first in the lowest bits
//   NAME_scale   bf16 [out, groups]
//   NAME_shape   i64 [2]
// Only the linear layers of blocks are packed; embeddings, the head, norms and biases keep their type.
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
  int bits = 4;       // 4 or 8: codes do not cross words
  int64_t group = 0;  // values of a row that share a scale; 0: the whole row
};
std::optional<int> int_bits_named(std::string_view name);  // "w4a16", "w8a16"

std::string packed_name(const std::string& weight);
std::string packed_scale_name(const std::string& weight);
std::string packed_shape_name(const std::string& weight);
Shape packed_shape(const Shape& matrix, IntGroups);
Shape packed_scale_shape(const Shape& matrix, IntGroups);
// What the shapes of the stored tensors say; nullopt where they do not fit together.
std::optional<IntGroups> packed_groups(const Shape& matrix, const Shape& packed, const Shape& scales);

// "quantization_config" of config.json, a JSON object.
std::string quantization_config_json(IntGroups);

// The three tensors, made block by block. The folder must outlive them. An Error(usage) where rows are no whole groups.
std::vector<TensorData> packed_matrix(const ModelFolder&, const std::string& weight, IntGroups);

// Whole rows: codes and scales -> out, f32. columns: of the matrix.
void unpack_rows(std::span<const std::byte> packed, std::span<const float> scales, int64_t columns, IntGroups,
                 std::vector<float>& out);

}  // namespace athanor
