// NF4 weights of a ModelFolder: stored as NF4, or quantized because adapters were trained on NF4 weights.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "config/choices.h"
#include "convert/floats.h"
#include "convert/model_folder.h"

namespace athanor {

ModelFolder::Weight ModelFolder::nf4_weight(const std::string& name, const Shape& shape) {
  constexpr int64_t kMostStateBytes = 1 << 16;
  const std::string state = nf4_state_name(name);
  const Stored of_state = stored(state);
  if (of_state.dtype != DType::u8 || of_state.shape.numel() > kMostStateBytes || shape.rank != 2)
    throw Error(cat(path_, ": tensor ", state, " is ", of_state.dtype, " of shape ", of_state.shape,
                    ", expected the text of a quantization state of a matrix"));
  std::vector<std::byte> bytes;
  read_stored(state, of_state, 0, of_state.shape.numel(), bytes);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Weight w{.name = name, .dtype = DType::f32, .shape = shape};
  w.nf4 = parse_nf4_state(text, cat(path_, ": ", state), in_out() ? Shape{shape[1], shape[0]} : shape);
  for (const Nf4Part& part : nf4_parts(name, {shape.numel(), w.nf4->nested})) {
    const bool there = has(part.name);
    const Stored found = there ? stored(part.name) : Stored{};
    if (!there || found.dtype != part.dtype || found.shape != part.shape)
      throw Error(cat(path_, ": tensor ", part.name,
                      there ? cat(" is ", found.dtype, " of shape ", found.shape) : std::string(" is missing"),
                      ", the matrix ", name, " ", shape, " in NF4 needs ", part.dtype, " of shape ", part.shape));
    if (part.at >= 0) continue;
    read_stored(part.name, found, 0, found.shape.numel(), bytes);
    std::vector<float> table;
    to_floats(bytes, DType::f32, table);
    if (!std::ranges::equal(table, kNf4.value))
      throw Error(
          cat(path_, ": ", part.name, " does not hold the 16 values of NF4; other quantization maps are not supported"),
          Exit::usage);
  }
  return w;
}

// The NF4 record of a matrix that the folder stores in NF4; without `packed`, its values are replaced by zeros.
std::vector<std::byte> ModelFolder::read_nf4_parts(const Weight& w, bool packed) const {
  const Nf4Record record(w.shape.numel(), w.nf4->nested);
  std::vector<std::byte> out(size_t(record.bytes)), bytes;
  for (const Nf4Part& part : nf4_parts(w.name, record)) {
    if (part.at < 0 || (part.at == 0 && !packed)) continue;
    read_stored(part.name, {part.dtype, part.shape}, 0, part.shape.numel(), bytes);
    std::memcpy(out.data() + part.at, bytes.data(), bytes.size());
  }
  if (record.nested) std::memcpy(out.data() + record.offset_at, &w.nf4->offset, sizeof w.nf4->offset);
  return out;
}

void ModelFolder::read_nf4(const Weight& w, int64_t begin, int64_t end, std::vector<std::byte>& out) const {
  if (in_out()) {
    const auto part = std::as_bytes(std::span(in_out_nf4_values(w)).subspan(size_t(begin), size_t(end - begin)));
    return out.assign(part.begin(), part.end());
  }
  const Nf4Record record(w.shape.numel(), w.nf4->nested);
  if (nf4_.name != w.name) nf4_ = {w.name, {}, nf4_absmax(read_nf4_parts(w, false), record)};
  std::vector<std::byte> packed;
  read_stored(w.name, {DType::u8, {record.packed_bytes(), 1}}, begin / 2, div_ceil<int64_t>(end, 2), packed);
  out.resize(size_t(end - begin) * sizeof(float));
  dequantize_nf4(packed.data(), nf4_.absmax, begin, end, reinterpret_cast<float*>(out.data()));
}

const std::vector<float>& ModelFolder::in_out_nf4_values(const Weight& w) const {
  if (unpacked_name_ == w.name) return unpacked_;
  const std::vector<std::byte> record = read_nf4_parts(w, true);
  std::vector<float> values(size_t(w.shape.numel()));
  dequantize_nf4(record.data(), nf4_absmax(record, {w.shape.numel(), w.nf4->nested}), 0, w.shape.numel(),
                 values.data());
  unpacked_ = transposed(values, w.shape[1]);
  unpacked_name_ = w.name;
  return unpacked_;
}

std::vector<std::byte> ModelFolder::stored_nf4_record(const Weight& w, bool nested) const {
  if (w.nf4->nested != nested)
    throw Error(cat(path_, ": ", w.name, " is stored in NF4 ", nested ? "without" : "with",
                    " double quantization; set lora.base_double_quant to ", nested ? "false" : "true",
                    ", or export it with --dtype ", nested ? "nf4_single" : "nf4"),
                Exit::usage);
  std::vector<std::byte> stored = read_nf4_parts(w, true);
  for (const float absmax : nf4_absmax(stored, {w.shape.numel(), nested}))
    if (!std::isfinite(absmax)) refuse_non_finite();
  return stored;
}

std::vector<std::byte> ModelFolder::nf4_file_record(const Weight& w, bool nested) const {
  if (!in_out()) return nf4_record(w, nested);
  if (w.nf4) return stored_nf4_record(w, nested);
  std::vector<std::byte> bytes;
  std::vector<float> values;
  read(w, 0, w.shape[0], bytes);
  to_floats(bytes, w.dtype, values);
  Nf4Quantizer quantizer(w.shape.numel(), nested);
  quantizer.add(transposed(values, w.shape[0]));
  return quantizer.finish();
}

std::vector<std::byte> ModelFolder::nf4_record(const Weight& w, bool nested) const {
  if (w.nf4 && in_out())
    throw Error(
        cat(path_, ": ", w.name, " of ", name_of(config_.model_type), " is stored in NF4 as [outputs, inputs], ",
            "and lora.base_precision nf4 computes with blocks of [inputs, outputs]; set init_from to the folder that "
            "it was exported from, or set lora.base_precision to none"),
        Exit::usage);
  if (w.nf4) return stored_nf4_record(w, nested);
  Nf4Quantizer quantizer(w.shape.numel(), nested);
  std::vector<float> values;
  for_each_block(w, [&](std::span<const std::byte> block) {
    to_floats(block, w.dtype, values);
    quantizer.add(values);
  });
  return quantizer.finish();
}

std::vector<float> ModelFolder::output_norms(const Weight& w, std::optional<bool> nested) const {
  std::vector<double> squares(size_t(config_.model_type == ModelType::gpt2 ? w.shape[1] : w.shape[0]));
  int64_t at = 0;
  const auto add = [&](std::span<const float> values) {
    for (const float x : values) squares[size_t(output_of(w, at++))] += double(x) * double(x);
  };
  std::vector<float> values;
  if (nested) {
    const std::vector<std::byte> record = nf4_record(w, *nested);
    const std::vector<float> absmax = nf4_absmax(record, {w.shape.numel(), *nested});
    values.resize(size_t(w.shape.numel()));
    dequantize_nf4(record.data(), absmax, 0, w.shape.numel(), values.data());
    add(values);
  } else {
    for_each_block(w, [&](std::span<const std::byte> block) {
      to_floats(block, w.dtype, values);
      add(values);
    });
  }
  std::vector<float> norms(squares.size());
  for (size_t i = 0; i < norms.size(); ++i) norms[i] = float(std::sqrt(squares[i]));
  return norms;
}

// The base weight that the adapters were trained on: its NF4 values if the run quantized it.
std::vector<float> ModelFolder::base_values(const Weight& w, int64_t begin, int64_t end) const {
  const Weight& of_base = base_->at(w.name);
  std::vector<float> values;
  if (w.quantized && !of_base.nf4) {
    const bool nested = adapter_->options().double_quant;
    if (nf4_.name != w.name) {
      std::vector<std::byte> record = base_->nf4_record(of_base, nested);
      std::vector<float> absmax = nf4_absmax(record, {w.shape.numel(), nested});
      nf4_ = {w.name, std::move(record), std::move(absmax)};
    }
    values.resize(size_t(end - begin));
    dequantize_nf4(nf4_.packed.data() + begin / 2, nf4_.absmax, begin, end, values.data());
    return values;
  }
  std::vector<std::byte> bytes;
  base_->read_unchecked(of_base, begin, end, bytes);
  to_floats(bytes, of_base.dtype, values);
  return values;
}

}  // namespace athanor
