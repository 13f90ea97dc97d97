#include "convert/fused_experts.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "convert/floats.h"
#include "convert/model_folder.h"
#include "tensor/float8.h"

namespace athanor {
namespace {

constexpr std::string_view kExperts = ".mlp.experts.";
constexpr int64_t kScaled = 32;  // values of MXFP4 that share a scale

// Moves element (k, n) of `stored` [K, N] to row row_of(n) of the result [N, K].
template <class T, class RowOf>
void transpose(const std::byte* stored, std::byte* out, int64_t inputs, int64_t outputs, RowOf&& row_of) {
  constexpr int64_t kTile = 32;
  const T* from = reinterpret_cast<const T*>(stored);
  T* to = reinterpret_cast<T*>(out);
  for (int64_t k0 = 0; k0 < inputs; k0 += kTile)
    for (int64_t n = 0; n < outputs; ++n) {
      const int64_t row = row_of(n);
      for (int64_t k = k0; k < std::min(k0 + kTile, inputs); ++k) to[row * inputs + k] = from[k * outputs + n];
    }
}

int64_t row_in_parts(const FusedPart& p, int64_t output) {
  return output % p.step * (p.outputs / p.step) + output / p.step;
}

}  // namespace

FusedPart fused_part(const std::string& name, const Shape& shape) {
  FusedPart part;
  const size_t at = name.find(kExperts);
  if (at == std::string::npos) return part;
  const size_t number = at + kExperts.size(), end = name.find('.', number), last = name.rfind('.');
  if (end == std::string::npos || end >= last) return part;
  const std::string module = name.substr(end + 1, last - end - 1), kind = name.substr(last + 1);
  const bool gated = module != "down_proj";
  part.tensor = cat(name.substr(0, number), gated ? "gate_up_proj" : "down_proj", kind == "bias" ? "_bias" : "");
  part.expert = std::stoll(name.substr(number, end - number));
  part.step = gated ? 2 : 1;
  part.first = module == "up_proj" ? 1 : 0;
  part.outputs = shape[0] * part.step;
  part.inputs = kind == "bias" ? 1 : shape[1];
  return part;
}

Shape fused_shape(const FusedPart& p, int64_t experts) {
  if (p.tensor.ends_with("_bias")) return {experts, p.outputs};
  return {experts, p.inputs, p.outputs};
}

std::vector<std::string> fused_names(const FusedPart& p) {
  if (!p.mxfp4) return {p.tensor};
  return {p.tensor + "_blocks", p.tensor + "_scales"};
}

std::vector<std::byte> outputs_in_parts(std::span<const std::byte> stored, const FusedPart& p, int64_t element_bytes) {
  std::vector<std::byte> out(stored.size());
  const auto row_of = [&](int64_t n) { return row_in_parts(p, n); };
  if (element_bytes == 2)
    transpose<uint16_t>(stored.data(), out.data(), p.inputs, p.outputs, row_of);
  else
    transpose<uint32_t>(stored.data(), out.data(), p.inputs, p.outputs, row_of);
  return out;
}

std::vector<std::byte> mxfp4_in_parts(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                                      const FusedPart& p) {
  std::vector<bf16> values(size_t(p.values()));
  for (int64_t n = 0; n < p.outputs; ++n)
    for (int64_t k = 0; k < p.inputs; ++k) {
      const int64_t at = n * p.inputs + k;
      const auto pair = uint8_t(blocks[size_t(at / 2)]);
      const float value = to_float(f4_e2m1{uint8_t(at % 2 == 0 ? pair & 0xfu : pair >> 4)});
      const float scale = to_float(e8m0{uint8_t(scales[size_t(at / kScaled)])});
      values[size_t(row_in_parts(p, n) * p.inputs + k)] = from_float<bf16>(value * scale);
    }
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

ModelFolder::Weight ModelFolder::fused_weight(const std::string& name, const Shape& shape) {
  Weight w{.name = name, .dtype = DType::bf16, .shape = shape, .fused = fused_part(name, shape)};
  FusedPart& part = *w.fused;
  if (part.tensor.empty() || part.expert >= config_.num_experts) return {};
  const auto require_shape = [&](const std::string& tensor, std::optional<DType> dtype, const Shape& expected) {
    const Stored found = has(tensor) ? stored(tensor) : Stored{DType::f32, {}};
    if (found.shape != expected || (dtype && found.dtype != *dtype))
      throw Error(cat(path_, ": tensor ", tensor, " is ", found.dtype, " of shape ", found.shape,
                      ", its config.json needs ", dtype ? cat(*dtype, " of ") : std::string(), "shape ", expected));
    return found.dtype;
  };
  const int64_t experts = config_.num_experts;
  if (has(part.tensor)) {
    w.dtype = require_shape(part.tensor, std::nullopt, fused_shape(part, experts));
    check_float({part.tensor, w.dtype, w.shape});
    return w;
  }
  if (!has(part.tensor + "_blocks") || part.inputs % kScaled != 0) return {};
  part.mxfp4 = true;
  const int64_t groups = part.inputs / kScaled;
  require_shape(part.tensor + "_blocks", DType::u8, {experts, part.outputs, groups, kScaled / 2});
  require_shape(part.tensor + "_scales", DType::u8, {experts, part.outputs, groups});
  return w;
}

// Reads all outputs of an expert, of which gate and up are parts, and keeps them.
void ModelFolder::read_fused(const Weight& w, int64_t begin, int64_t end, std::vector<std::byte>& out) const {
  const FusedPart& part = *w.fused;
  const std::string name = cat(part.tensor, " ", part.expert);
  if (fused_name_ != name) {
    const auto of_expert = [&](const std::string& tensor) {
      const Stored all = stored(tensor);
      const int64_t each = all.shape.numel() / all.shape[0];
      std::vector<std::byte> bytes;
      read_stored(tensor, all, part.expert * each, (part.expert + 1) * each, bytes);
      return bytes;
    };
    fused_ = part.mxfp4 ? mxfp4_in_parts(of_expert(part.tensor + "_blocks"), of_expert(part.tensor + "_scales"), part)
                        : outputs_in_parts(of_expert(part.tensor), part, int64_t(size_of(w.dtype)));
    fused_name_ = name;
  }
  const int64_t size = int64_t(size_of(w.dtype)), at = part.first * w.shape.numel();
  out.assign(fused_.begin() + (at + begin) * size, fused_.begin() + (at + end) * size);
}

TensorData fused_tensor(const ModelFolder& model, const std::string& first, DType dtype) {
  const ModelFolder::Weight& weight = model.at(first);
  const FusedPart all = fused_part(first, weight.shape);
  const int64_t experts = model.config().num_experts;
  const auto make = [&model, &weight, all, experts, dtype](const ByteSink& sink) {
    std::vector<float> values, fused(size_t(all.values()));
    std::vector<std::byte> bytes;
    for (int64_t e = 0; e < experts; ++e) {
      for (const char* part : {"gate_proj", "up_proj"}) {
        std::string name = weight.name;
        name.replace(name.find(".experts.0.") + 9, 1, std::to_string(e));
        if (const size_t gate = name.find("gate_proj"); gate != std::string::npos) name.replace(gate, 9, part);
        const ModelFolder::Weight& of_expert = model.at(name);
        model.read(of_expert, 0, of_expert.shape[0], bytes);
        to_floats(bytes, of_expert.dtype, values);
        const FusedPart p = fused_part(name, of_expert.shape);
        for (int64_t n = 0; n < of_expert.shape[0]; ++n)
          for (int64_t k = 0; k < p.inputs; ++k)
            fused[size_t(k * p.outputs + p.first + n * p.step)] = values[size_t(n * p.inputs + k)];
        if (p.step == 1) break;
      }
      from_floats(fused, dtype, weight.name, bytes);
      sink(bytes);
    }
  };
  return {.name = all.tensor, .dtype = dtype, .shape = fused_shape(all, experts), .pieces = {}, .make = make};
}

}  // namespace athanor
