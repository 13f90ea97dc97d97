#include "convert/low_precision.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "convert/floats.h"
#include "convert/model_folder.h"
#include "ops/quantize.h"

namespace athanor {
namespace {

constexpr int64_t kBlock = 128;

// Maps each element to its scale.
struct Grid {
  Grid(const Shape& matrix, Fp8Blocks of)
      : blocks(of == Fp8Blocks::tensor    ? Blocks{matrix[0], matrix[1]}
               : of == Fp8Blocks::channel ? Blocks{1, matrix[1]}
                                          : Blocks{kBlock, kBlock}),
        cols(matrix[1]),
        shape(blocks.grid(matrix)) {}
  size_t at(int64_t row, int64_t col) const { return size_t(row / blocks.rows * shape[1] + col / blocks.cols); }

  Blocks blocks;
  int64_t cols;
  Shape shape;  // shape of the scales
};

// Quantization scale of each block of a matrix.
std::vector<CodeScale> code_scales(const ModelFolder& model, const ModelFolder::Weight& weight, const Grid& grid) {
  std::vector<float> amax(size_t(grid.shape.numel()), 0.0f), values;
  int64_t row = 0;
  model.for_each_block(weight, [&](std::span<const std::byte> block) {
    to_floats(block, weight.dtype, values);
    for (size_t i = 0; i < values.size(); i += size_t(grid.cols), ++row)
      for (int64_t col = 0; col < grid.cols; ++col) {
        float& most = amax[grid.at(row, col)];
        most = std::max(most, std::abs(values[i + size_t(col)]));
      }
  });
  std::vector<CodeScale> scales;
  for (const float most : amax) scales.push_back(code_scale(most, f8_e4m3::kMost, false));
  return scales;
}

}  // namespace

std::optional<Fp8Blocks> fp8_blocks_named(std::string_view name) {
  if (name == "fp8_tensor") return Fp8Blocks::tensor;
  if (name == "fp8_channel") return Fp8Blocks::channel;
  if (name == "fp8_block") return Fp8Blocks::block;
  return std::nullopt;
}

std::string scale_name(const std::string& weight, Fp8Blocks blocks) {
  return weight + (blocks == Fp8Blocks::block ? "_scale_inv" : "_scale");
}

Shape scale_shape(const Shape& matrix, Fp8Blocks blocks) {
  if (blocks == Fp8Blocks::tensor) return {1};
  return Grid(matrix, blocks).shape;
}

std::string quantization_config_json(Fp8Blocks blocks, const std::vector<std::string>& floats) {
  const std::string names = nlohmann::json(floats).dump();
  if (blocks == Fp8Blocks::block)
    return cat(R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [)",
               kBlock, ", ", kBlock, R"(], "modules_to_not_convert": )", names, "}");
  const char* strategy = blocks == Fp8Blocks::tensor ? "tensor" : "channel";
  return cat(
      R"({"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed", )",
      R"("ignore": )", names, R"(, "config_groups": {"group_0": {"targets": ["Linear"], )",
      R"("weights": {"num_bits": 8, "type": "float", "symmetric": true, "dynamic": false, "strategy": ")", strategy,
      R"("}, "input_activations": {"num_bits": 8, "type": "float", "symmetric": true, "dynamic": true, )",
      R"("strategy": "token"}}}})");
}

Fp8Matrix fp8_matrix(const ModelFolder& model, const std::string& name, Fp8Blocks blocks) {
  const ModelFolder::Weight& weight = model.at(name);
  const Grid grid(weight.shape, blocks);
  // Computed when the first of the two tensors is written.
  const auto table = [&model, &weight, grid, made = std::make_shared<std::vector<CodeScale>>() ]() -> auto& {
    if (made->empty()) *made = code_scales(model, weight, grid);
    return *made;
  };
  const auto make_values = [&model, &weight, grid, table](const ByteSink& sink) {
    const std::vector<CodeScale>& scales = table();
    std::vector<float> values;
    std::vector<std::byte> quantized;
    int64_t row = 0;
    model.for_each_block(weight, [&](std::span<const std::byte> block) {
      to_floats(block, weight.dtype, values);
      quantized.resize(values.size());
      for (size_t i = 0; i < values.size(); i += size_t(grid.cols), ++row)
        for (int64_t col = 0; col < grid.cols; ++col) {
          const size_t at = i + size_t(col);
          quantized[at] = std::byte(from_float<f8_e4m3>(values[at] * scales[grid.at(row, col)].factor).bits);
        }
      sink(quantized);
    });
  };
  const auto make_scales = [table](const ByteSink& sink) {
    for (const CodeScale& s : table()) sink(std::as_bytes(std::span(&s.scale, 1)));
  };
  return {.values = {.name = name, .dtype = DType::f8_e4m3, .shape = weight.shape, .pieces = {}, .make = make_values},
          .scales = {.name = scale_name(name, blocks),
                     .dtype = DType::f32,
                     .shape = scale_shape(weight.shape, blocks),
                     .pieces = {},
                     .make = make_scales}};
}

void decode(std::span<const std::byte> quantized, int64_t first, const Shape& matrix, Fp8Blocks blocks,
            std::span<const float> scales, std::vector<std::byte>& out) {
  const Grid grid(matrix, blocks);
  out.resize(quantized.size() * sizeof(float));
  int64_t row = first / grid.cols, col = first % grid.cols;
  for (size_t i = 0; i < quantized.size(); ++i) {
    const float value = to_float(f8_e4m3{uint8_t(quantized[i])}) * scales[grid.at(row, col)];
    std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
    if (++col == grid.cols) col = 0, ++row;
  }
}

}  // namespace athanor
