#include "convert/nf4_file.h"

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "convert/model_folder.h"

namespace athanor {
namespace {

std::string state_json(const Shape& matrix, bool nested, float offset) {
  nlohmann::ordered_json json = {
      {"quant_type", "nf4"}, {"blocksize", kNf4Block}, {"dtype", "bfloat16"}, {"shape", {matrix[0], matrix[1]}}};
  if (nested) {
    json["nested_blocksize"] = kNf4NestedBlock;
    json["nested_dtype"] = "float32";
    json["nested_offset"] = double(offset);
  }
  return json.dump();
}

// Pads the JSON with spaces to a fixed length: the file's header states the length before the offset is known.
constexpr size_t kStateBytes = 256;
std::string padded(std::string text) {
  CHECK(text.size() <= kStateBytes, "a quantization state of ", text.size(), " bytes");
  text.resize(kStateBytes, ' ');
  return text;
}

}  // namespace

std::string nf4_state_name(const std::string& weight) { return weight + ".quant_state.bitsandbytes__nf4"; }

std::vector<Nf4Part> nf4_parts(const std::string& weight, const Nf4Record& r) {
  std::vector<Nf4Part> parts = {
      {weight, DType::u8, {r.packed_bytes(), 1}, 0, r.packed_bytes()},
      {weight + ".absmax", r.nested ? DType::u8 : DType::f32, {r.blocks}, r.absmax_at, r.absmax_bytes()},
      {weight + ".quant_map", DType::f32, {int64_t(std::size(kNf4.value))}, -1, sizeof kNf4.value}};
  if (!r.nested) return parts;
  parts.push_back({weight + ".nested_absmax", DType::f32, {r.nested_blocks}, r.nested_at, 4 * r.nested_blocks});
  parts.push_back({weight + ".nested_quant_map", DType::f32, {kNf4MapSize}, r.map_at, 4 * kNf4MapSize});
  return parts;
}

Nf4State parse_nf4_state(const std::string& text, const std::string& where, const Shape& matrix) {
  const auto refuse = [&](const auto&... why) { throw Error(cat(where, ": ", why...), Exit::usage); };
  const auto json = parse_json_text<nlohmann::json>(text, where);
  if (!json.is_object()) refuse("expected a JSON object");
  const auto need = [&](const char* key, const nlohmann::json& value) {
    const nlohmann::json found = json.value(key, nlohmann::json());
    if (found != value) refuse(key, " is ", json_text(found), ", expected ", json_text(value));
  };
  need("quant_type", "nf4");
  need("blocksize", kNf4Block);
  need("shape", {matrix[0], matrix[1]});
  Nf4State state{.nested = json.contains("nested_offset")};
  if (!state.nested) return state;
  need("nested_blocksize", kNf4NestedBlock);
  need("nested_dtype", "float32");
  if (!json.at("nested_offset").is_number()) refuse("nested_offset: expected a number");
  state.offset = float(json.at("nested_offset").get<double>());
  return state;
}

std::string nf4_config_json(bool nested) {
  return cat(R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false, )",
             R"("bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": )", nested ? "true" : "false",
             R"(, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8", )",
             R"("llm_int8_threshold": 6.0, "llm_int8_skip_modules": null, "llm_int8_has_fp16_weight": false, )",
             R"("llm_int8_enable_fp32_cpu_offload": false})");
}

// Safetensors files order tensors by dtype, then by name (safetensors_order()). So a matrix's parts of one dtype are
// consecutive; quant_map and the state are the last ones of their dtypes. Parts of a dtype are cut from one record,
// which is freed after the last of them: parts of all other matrices come before the next dtype.
std::vector<TensorData> nf4_matrix(const ModelFolder& model, const std::string& weight, bool nested) {
  const Shape& own = model.at(weight).shape;
  const Shape shape = model.in_out() ? Shape{own[1], own[0]} : own;
  const Nf4Record record(shape.numel(), nested);
  const auto kept = std::make_shared<std::vector<std::byte>>();
  const auto bytes_of = [&model, weight, nested, kept](int64_t at, int64_t bytes) {
    if (kept->empty()) *kept = model.nf4_file_record(model.at(weight), nested);
    return std::span<const std::byte>(*kept).subspan(size_t(at), size_t(bytes));
  };
  std::vector<TensorData> tensors;
  for (const Nf4Part& part : nf4_parts(weight, record)) {
    const auto make = [part, bytes_of, kept](const ByteSink& sink) {
      if (part.at >= 0) return sink(bytes_of(part.at, part.bytes));
      *kept = {};
      sink(std::as_bytes(std::span(kNf4.value)));
    };
    tensors.push_back({.name = part.name, .dtype = part.dtype, .shape = part.shape, .pieces = {}, .make = make});
  }
  const auto make_state = [record, shape, bytes_of, kept](const ByteSink& sink) {
    float offset = 0;
    if (record.nested) std::memcpy(&offset, bytes_of(record.offset_at, sizeof offset).data(), sizeof offset);
    *kept = {};
    const std::string text = padded(state_json(shape, record.nested, offset));
    sink(std::as_bytes(std::span(text)));
  };
  tensors.push_back({.name = nf4_state_name(weight),
                     .dtype = DType::u8,
                     .shape = {int64_t(kStateBytes)},
                     .pieces = {},
                     .make = make_state});
  return tensors;
}

}  // namespace athanor
