#include "convert/gptq.h"

#include "base/error.h"
#include "convert/floats.h"
#include "convert/model_folder.h"

namespace athanor {
namespace {

int64_t group_of(int64_t in, const GptqOptions& o) { return o.group > 0 ? o.group : in; }

// Result shared by the four tensors: computed by the first one written; the integers are freed after their tensor is
// written.
struct Made {
  GptqMatrix matrix;
  bool done = false;
};

void make(const ModelFolder& model, const std::string& name, const GptqExport& x, Made& made) {
  if (made.done) return;
  const ModelFolder::Weight& w = model.at(name);
  std::vector<std::byte> bytes;
  std::vector<float> values;
  model.read(w, 0, w.shape[0], bytes);
  to_floats(bytes, w.dtype, values);
  made.matrix = quantize_gptq(
      {.weight = std::move(values), .hessian = x.hessian(name), .out = w.shape[0], .in = w.shape[1], .what = name},
      x.options, *x.pool);
  made.done = true;
}

void emit(std::span<const int32_t> words, const ByteSink& sink) { sink(std::as_bytes(words)); }

std::vector<int32_t> pack_quantized(const GptqMatrix& m, const Shape& shape, int bits) {
  const int64_t out = shape[0], in = shape[1], in_word = 32 / bits;
  std::vector<int32_t> words(static_cast<size_t>(in / in_word * out));
  for (int64_t r = 0; r < out; ++r)
    for (int64_t c = 0; c < in; ++c) {
      int32_t& word = words[size_t(c / in_word * out + r)];
      word = int32_t(uint32_t(word) | uint32_t(m.quantized[size_t(r * in + c)]) << (int(c % in_word) * bits));
    }
  return words;
}

void require_sizes(const std::string& name, const Shape& shape, const GptqOptions& o) {
  const int64_t in_word = 32 / o.bits, group = group_of(shape[1], o);
  if (shape[0] % in_word != 0 || shape[1] % in_word != 0)
    throw Error(
        cat("export: ", name, " ", shape, ": GPTQ's files need multiples of ", in_word, " for ", o.bits, " bits"),
        Exit::usage);
  if (shape[1] % group != 0)
    throw Error(cat("export: ", name, " has rows of ", shape[1], " values, no multiple of --group-size ", o.group,
                    "; give a size that divides it, or 0 for one scale per row"),
                Exit::usage);
}

}  // namespace

std::string gptq_name(const std::string& weight, GptqTensor tensor) {
  static constexpr const char* kNames[] = {"qweight", "qzeros", "scales", "g_idx"};
  return weight.substr(0, weight.rfind('.') + 1) + kNames[size_t(tensor)];
}

std::string quantization_config_json(const GptqOptions& o, const std::string& floats) {
  return cat(R"({"quant_method": "gptq", "checkpoint_format": "gptq", "bits": )", o.bits, R"(, "group_size": )",
             o.group > 0 ? o.group : -1, R"(, "desc_act": )", o.act_order ? "true" : "false",
             R"(, "sym": true, "damp_percent": )", o.damping,
             R"(, "static_groups": false, "true_sequential": false, "lm_head": false)",
             floats.empty() ? "" : cat(R"(, "dynamic": {"-:)", floats, R"(": {}})"), "}");
}

std::vector<TensorData> gptq_matrix(const ModelFolder& model, const std::string& name, const GptqExport& x) {
  const Shape shape = model.at(name).shape;
  const GptqOptions o = x.options;
  require_sizes(name, shape, o);
  const int64_t groups = shape[1] / group_of(shape[1], o), in_word = 32 / o.bits;
  const auto made = std::make_shared<Made>();
  const auto quantized = [&model, &x, name, shape, o, made](const ByteSink& sink) {
    make(model, name, x, *made);
    emit(pack_quantized(made->matrix, shape, o.bits), sink);
    made->matrix.quantized = {};
  };
  const auto zeros = [groups, shape, o, in_word](const ByteSink& sink) {
    const auto zero = uint32_t((1 << (o.bits - 1)) - 1);
    uint32_t word = 0;
    for (int i = 0; i < in_word; ++i) word |= zero << (i * o.bits);
    emit(std::vector<int32_t>(static_cast<size_t>(groups * shape[0] / in_word), int32_t(word)), sink);
  };
  const auto scales = [&model, &x, name, made](const ByteSink& sink) {
    make(model, name, x, *made);
    std::vector<std::byte> bytes;
    from_floats(made->matrix.scales, DType::f16, name, bytes);
    sink(bytes);
  };
  const auto group_index = [&model, &x, name, made](const ByteSink& sink) {
    make(model, name, x, *made);
    emit(made->matrix.group_of, sink);
  };
  const auto tensor = [&name](GptqTensor which, DType dtype, Shape of, std::function<void(const ByteSink&)> run) {
    return TensorData{
        .name = gptq_name(name, which), .dtype = dtype, .shape = of, .pieces = {}, .make = std::move(run)};
  };
  return {tensor(GptqTensor::qweight, DType::i32, {shape[1] / in_word, shape[0]}, quantized),
          tensor(GptqTensor::qzeros, DType::i32, {groups, shape[0] / in_word}, zeros),
          tensor(GptqTensor::scales, DType::f16, {groups, shape[0]}, scales),
          tensor(GptqTensor::g_idx, DType::i32, {shape[1]}, group_index)};
}

std::vector<float> gptq_values(const GptqStored& s) {
  const int64_t out = s.matrix[0], in = s.matrix[1], in_word = 32 / s.bits;
  const uint32_t mask = (1u << s.bits) - 1;
  const auto code = [&](int32_t word, int64_t i) { return int(uint32_t(word) >> (int(i % in_word) * s.bits) & mask); };
  std::vector<float> values(static_cast<size_t>(out * in));
  for (int64_t c = 0; c < in; ++c) {
    const int64_t group = s.g_idx[size_t(c)];
    for (int64_t r = 0; r < out; ++r) {
      // Files hold zero - 1 modulo 2^bits: zero 0, of a group without negative values, is stored as 15.
      const int zero = (code(s.qzeros[size_t((group * out + r) / in_word)], r) + 1) & int(mask);
      const int q = code(s.qweight[size_t(c / in_word * out + r)], c);
      values[size_t(r * in + c)] = s.scales[size_t(group * out + r)] * float(q - zero);
    }
  }
  return values;
}

}  // namespace athanor
