#include "convert/int_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "convert/floats.h"
#include "convert/model_folder.h"
#include "tensor/half.h"

namespace athanor {
namespace {

int64_t group_of(int64_t columns, IntGroups g) { return g.group > 0 ? g.group : columns; }
int64_t words_of(int64_t columns, IntGroups g) { return (columns * g.bits + 31) / 32; }

// The scale maps the group's amax to half the range of the integers (7.5 for 4 bits) and is rounded to bf16, as stored
// in the file. A group of zeros gets the epsilon of bf16, as in the compressed-tensors library.
float scale_of(std::span<const float> values, IntGroups g) {
  float amax = 0;
  for (const float x : values) amax = std::max(amax, std::fabs(x));
  const float scale = to_float(from_float<bf16>(amax / (float((1 << g.bits) - 1) / 2)));
  return scale == 0 ? 0.0078125f : scale;
}

void append_row_scales(std::span<const float> row, IntGroups g, std::vector<std::byte>& out) {
  const auto group = size_t(group_of(int64_t(row.size()), g));
  for (size_t at = 0; at < row.size(); at += group) {
    const bf16 scale = from_float<bf16>(scale_of(row.subspan(at, group), g));
    const auto* bytes = reinterpret_cast<const std::byte*>(&scale);
    out.insert(out.end(), bytes, bytes + sizeof scale);
  }
}

void append_quantized_row(std::span<const float> row, IntGroups g, std::vector<std::byte>& out) {
  const auto group = size_t(group_of(int64_t(row.size()), g));
  const int half = 1 << (g.bits - 1), in_word = 32 / g.bits;
  std::vector<uint32_t> words(static_cast<size_t>(words_of(int64_t(row.size()), g)));
  for (size_t at = 0; at < row.size(); at += group) {
    const float scale = scale_of(row.subspan(at, group), g);
    for (size_t i = at; i < at + group; ++i) {
      const float rounded = std::clamp(std::nearbyint(row[i] / scale), -float(half), float(half - 1));
      words[i / size_t(in_word)] |= uint32_t(int(rounded) + half) << (int(i % size_t(in_word)) * g.bits);
    }
  }
  const auto bytes = std::as_bytes(std::span(words));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

using AppendRow = void (*)(std::span<const float> row, IntGroups g, std::vector<std::byte>& out);
std::function<void(const ByteSink&)> row_by_row(const ModelFolder& model, const std::string& name, IntGroups g,
                                                AppendRow append) {
  return [&model, name, g, append](const ByteSink& sink) {
    const ModelFolder::Weight& weight = model.at(name);
    const auto columns = size_t(weight.shape[1]);
    std::vector<float> values;
    std::vector<std::byte> bytes;
    model.for_each_block(weight, [&](std::span<const std::byte> block) {
      to_floats(block, weight.dtype, values);
      bytes.clear();
      for (size_t at = 0; at < values.size(); at += columns) append(std::span(values).subspan(at, columns), g, bytes);
      sink(bytes);
    });
  };
}

}  // namespace

std::optional<int> int_bits_named(std::string_view name) {
  if (name == "w4a16") return 4;
  if (name == "w8a16") return 8;
  return std::nullopt;
}

std::string packed_name(const std::string& weight) { return weight + "_packed"; }
std::string packed_scale_name(const std::string& weight) { return weight + "_scale"; }
std::string packed_shape_name(const std::string& weight) { return weight + "_shape"; }
Shape packed_shape(const Shape& matrix, IntGroups g) { return {matrix[0], words_of(matrix[1], g)}; }
Shape packed_scale_shape(const Shape& matrix, IntGroups g) { return {matrix[0], matrix[1] / group_of(matrix[1], g)}; }

std::optional<IntGroups> packed_groups(const Shape& matrix, const Shape& packed, const Shape& scales) {
  if (packed.rank != 2 || scales.rank != 2 || scales[1] < 1 || matrix[1] % scales[1] != 0) return std::nullopt;
  for (const int bits : {4, 8}) {
    const IntGroups g{.bits = bits, .group = scales[1] == 1 ? 0 : matrix[1] / scales[1]};
    if (packed == packed_shape(matrix, g) && scales == packed_scale_shape(matrix, g)) return g;
  }
  return std::nullopt;
}

std::string quantization_config_json(IntGroups g, const std::vector<std::string>& floats) {
  const std::string strategy =
      g.group > 0 ? cat(R"("strategy": "group", "group_size": )", g.group) : R"("strategy": "channel")";
  return cat(
      R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", )",
      R"("ignore": )", nlohmann::json(floats).dump(),
      R"(, "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": )", g.bits,
      R"(, "type": "int", "symmetric": true, "dynamic": false, )", strategy,
      R"(}, "input_activations": null, "output_activations": null}}})");
}

std::vector<TensorData> packed_matrix(const ModelFolder& model, const std::string& name, IntGroups g) {
  const Shape& shape = model.at(name).shape;
  if (shape[1] % group_of(shape[1], g) != 0)
    throw Error(cat("export: ", name, " has rows of ", shape[1], " values, no multiple of --group-size ", g.group,
                    "; give a size that divides it, or 0 for one scale per row"),
                Exit::usage);
  const auto make_shape = [shape](const ByteSink& sink) {
    const int64_t sizes[] = {shape[0], shape[1]};
    sink(std::as_bytes(std::span(sizes)));
  };
  return {{.name = packed_name(name),
           .dtype = DType::i32,
           .shape = packed_shape(shape, g),
           .pieces = {},
           .make = row_by_row(model, name, g, append_quantized_row)},
          {.name = packed_scale_name(name),
           .dtype = DType::bf16,
           .shape = packed_scale_shape(shape, g),
           .pieces = {},
           .make = row_by_row(model, name, g, append_row_scales)},
          {.name = packed_shape_name(name), .dtype = DType::i64, .shape = {2}, .pieces = {}, .make = make_shape}};
}

void unpack_rows(std::span<const std::byte> packed, std::span<const float> scales, int64_t columns, IntGroups g,
                 std::vector<float>& out) {
  const int64_t words = words_of(columns, g), rows = int64_t(packed.size()) / (4 * words);
  const int64_t group = group_of(columns, g), groups = columns / group;
  const int in_word = 32 / g.bits, half = 1 << (g.bits - 1);
  const uint32_t mask = (1u << g.bits) - 1;
  out.resize(size_t(rows * columns));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      uint32_t word;
      std::memcpy(&word, packed.data() + 4 * (r * words + c / in_word), sizeof word);
      const int code = int(word >> (int(c % in_word) * g.bits) & mask) - half;
      out[size_t(r * columns + c)] = float(code) * scales[size_t(r * groups + c / group)];
    }
}

}  // namespace athanor
