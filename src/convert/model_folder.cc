#include "convert/model_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/printable.h"
#include "checkpoint/store.h"
#include "config/config.h"
#include "config/model_config.h"
#include "convert/floats.h"
#include "convert/folder_links.h"
#include "convert/gguf_weights.h"
#include "convert/gptq.h"
#include "model/adapters.h"

namespace athanor {
namespace {

bool exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

ModelConfig read_config(const std::string& folder, Links links) {
  const std::string path = folder + "/config.json";
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) throw_io("looking for a model in", folder, errno);
  if (!S_ISDIR(info.st_mode))
    throw Error(cat(folder, ": expected a folder with config.json and weights, found a file"), Exit::usage);
  if (!exists(path)) throw Error(cat(folder, ": holds no model: there is no config.json in it"), Exit::usage);
  if (links == Links::inside) require_in_folder(folder, "config.json", path_behind(path));
  std::vector<std::string> notices;
  ModelConfig config = load_model_config(path, &notices);
  for (const std::string& notice : notices) log::info(notice);
  return config;
}

constexpr GptqTensor kGptqTensors[] = {GptqTensor::qweight, GptqTensor::qzeros, GptqTensor::scales, GptqTensor::g_idx};

int64_t rows_of(const Shape& shape) { return shape.rank == 0 ? 1 : shape.dim[0]; }
int64_t row_of(const Shape& shape) { return shape.numel() / rows_of(shape); }  // elements per row

// Calls run(begin, end) over all elements in order, in blocks of whole rows of about kBlockBytes.
template <class Fn>
void for_each_rows(const ModelFolder::Weight& w, Fn&& run) {
  const int64_t row = row_of(w.shape), all = w.shape.numel();
  const int64_t step = std::max<int64_t>(1, ModelFolder::kBlockBytes / (row * int64_t(size_of(w.dtype)))) * row;
  for (int64_t at = 0; at < all; at += step) run(at, std::min(at + step, all));
}

}  // namespace

std::string newest_model(const std::string& folder, const Verify& verify) {
  require_folder(folder);
  if (list_checkpoints(folder).empty()) return folder;
  std::vector<std::string> skipped;
  const auto newest = newest_valid(folder, &skipped, verify);
  for (const std::string& why : skipped) log::warn(folder, ": checkpoint skipped: ", why);
  if (newest) log::info("checkpoint: ", newest->path);
  if (!newest)
    throw Error(cat(folder, ": no checkpoint in it is whole; `athanor checkpoint list ", folder, "` says why"));
  return newest->path;
}

VerifiedModel verified_model(const std::string& path, const Verify& verify) {
  if (is_gguf_file(path)) return {path};
  const std::string folder = newest_model(path, verify);  // already verified if the path is a run's folder
  if (folder != path || !exists(cat(folder, "/", kManifestName))) return {folder};
  const Verification whole = verify(folder);
  if (!whole.ok) throw Error(cat(folder, whole.unreadable ? " cannot be read: " : " is damaged: ", whole.problem));
  return {folder};
}

ModelFolder::ModelFolder(const std::string& path, bool averages, Links links)
    : ModelFolder(verified_model(path), averages, links) {}

ModelFolder::~ModelFolder() = default;

ModelFolder::ModelFolder(const std::string& gguf, const ModelConfig& config)
    : path_(gguf),
      averages_(false),
      links_(Links::inside),
      config_(config),
      gguf_(std::make_unique<GgufWeights>(gguf)) {
  check_weights(true);
}

ModelFolder::ModelFolder(const VerifiedModel& model, bool averages, Links links, int adapters)
    : path_(model.folder), averages_(averages), links_(links) {
  if (is_gguf_file(path_)) {
    gguf_ = std::make_unique<GgufWeights>(path_);
    config_ = gguf_config(gguf_->file());
  } else if (AdapterFolder::is_one(path_)) {
    open_adapter(adapters);
  } else {
    config_ = read_config(path_, links);
    open_folder();
  }
  if (averages_) averages_ = find_averages();
  if (averages_ && adapter_) adapter_->use_averages();
  check_weights(!model.elsewhere);
  if (checkpoint_) find_two_of_four();
}

// The adapter folder itself may have a config.json, as checkpoints of this program do.
void ModelFolder::open_adapter(int adapters) {
  constexpr int kMost = 16;  // a longer chain must be a cycle
  if (adapters == kMost)
    throw Error(cat(path_, ": adapters of adapters, ", kMost, " deep: folders name each other as their base"));
  adapter_ = std::make_unique<AdapterFolder>(path_);
  const std::string& base = adapter_->base();
  base_ = with_context(cat(path_, ": the model that its adapters are for, ", base), [&] {
    return std::make_unique<ModelFolder>(verified_model(base), false, links_, adapters + 1);
  });
  if (const std::string found = weights_fingerprint(*base_);
      !adapter_->fingerprint().empty() && found != adapter_->fingerprint())
    throw Error(cat(path_, ": its adapters were trained on other weights than those of ", base, " (fingerprint ",
                    adapter_->fingerprint(), ", now ", found, "); put back the model that was there"),
                Exit::usage);
  config_ = exists(cat(path_, "/config.json")) ? read_config(path_, links_) : base_->config();
}

void ModelFolder::open_folder() {
  if (exists(cat(path_, "/", kManifestName))) {
    checkpoint_ = std::make_unique<CheckpointReader>(path_);
  } else if (exists(cat(path_, "/state.json"))) {  // only this program writes state.json
    throw Error(cat(path_, ": is a checkpoint without its ", kManifestName,
                    ", so its files cannot be verified; use another checkpoint, or copy config.json, "
                    "model*.safetensors and the tokenizer to a folder of their own to use them as they are"));
  } else {
    files_ = std::make_unique<WeightFiles>(path_);
    for (const std::string& file : files_->paths())
      if (links_ == Links::inside) require_in_folder(path_, base_name(file), path_behind(file));
  }
}

ModelFolder::Stored ModelFolder::stored(const std::string& name) const {
  if (gguf_) return {DType::f32, gguf_->shape_of(name)};
  if (has_average_minus_weight(name)) return {DType::f32, checkpoint_->at(name).shape};
  if (checkpoint_) {
    const CheckpointReader::Info& info = checkpoint_->at(stored_name(name));
    return {info.dtype, info.shape};
  }
  const TensorEntry& entry = *files_->at(name).entry;
  return {entry.checked_dtype(), entry.checked_shape()};
}

bool ModelFolder::has(const std::string& name) const {
  if (gguf_) return gguf_->has(name);
  return checkpoint_ ? checkpoint_->tensors().contains(name) : files_->tensors().contains(name);
}

// Names of the model's tensors; a checkpoint also has other tensors (optimizer states etc.), whose names have prefixes.
std::vector<std::string> ModelFolder::names() const {
  std::vector<std::string> all;
  if (files_)
    for (const auto& [name, place] : files_->tensors()) all.push_back(name);
  return all;
}

namespace {

// Names of the tensors of a file that hold a weight.
std::set<std::string> stored_names(const ModelFolder::Weight& w) {
  std::set<std::string> names;
  if (w.gptq_bits > 0) {
    for (const GptqTensor t : kGptqTensors) names.insert(gptq_name(w.name, t));
  } else if (w.nf4) {
    names.insert(nf4_state_name(w.name));
    for (const Nf4Part& part : nf4_parts(w.name, {w.shape.numel(), w.nf4->nested})) names.insert(part.name);
  } else if (w.ints) {
    names = {packed_name(w.name), packed_scale_name(w.name), packed_shape_name(w.name)};
  } else if (w.fused) {
    for (const std::string& name : fused_names(*w.fused)) names.insert(name);
  } else {
    names.insert(w.name);
    if (w.fp8) names.insert(scale_name(w.name, *w.fp8));
  }
  return names;
}

}  // namespace

// heads: if a tied model's head is also stored, compares it with the embedding.
void ModelFolder::check_weights(bool heads) {
  const auto model = make_model(config_);
  for (const ParamSpec& spec : model->params().specs())
    for (const HfSlice& slice : spec.slices) {
      weights_.push_back(find_weight(slice.name, slice.shape, spec));
      weights_.back().role = spec.role;
      weights_.back().linear = is_linear_or_expert(spec);
      weights_.back().buffer = spec.buffer;
      check_float(weights_.back());
      places_[slice.name] = weights_.size() - 1;
    }
  std::set<std::string> known;
  for (const Weight& w : weights_) known.merge(stored_names(w));
  for (const std::string& name : names()) {
    if (known.contains(name) || predicts_further_tokens(config_, name)) continue;
    if (name != "lm_head.weight")
      throw Error(cat(path_, ": the tensor ", printable(name), " is no part of the ", name_of(config_.model_type),
                      " model that config.json describes"));
    if (heads) check_tied_head(weights_.front());
  }
  if (gguf_) gguf_->require_no_others(weights_);
  if (!adapter_) return;
  for (const std::string& module : adapter_->modules())
    if (std::ranges::none_of(weights_, [&](const Weight& w) { return w.adapted && module_of(w.name) == module; }))
      throw Error(cat(path_, ": adapters of ", printable(module), ", which is no linear layer of ", base_->path()));
}

// A weight of the base model, to which adapters are added if the folder has them.
ModelFolder::Weight ModelFolder::merged_weight(const std::string& name, const Shape& shape, const ParamSpec& of) {
  const Weight& of_base = base_->at(name);
  if (of_base.shape != shape)
    throw Error(cat(base_->path(), ": tensor ", name, " has shape ", of_base.shape, ", the config.json of ", path_,
                    " needs ", shape));
  Weight w{.name = name, .dtype = of_base.dtype, .shape = shape};
  const std::string module = module_of(name);
  w.quantized = is_linear_or_expert(of) && adapter_->options().base == BasePrecision::nf4;
  w.adapted = shape.rank == 2 && is_linear(of) && adapter_->adapts(module);
  if (!w.quantized && !w.adapted) return w;
  w.merged = w.dtype;
  w.dtype = DType::f32;
  if (!w.adapted) return w;
  const bool in_out = config_.model_type == ModelType::gpt2;
  const int64_t rank = adapter_->options().rank, in = shape[in_out ? 0 : 1], out = shape[in_out ? 1 : 0];
  adapter_->require_shape(lora_a_name(module), {rank, in});
  adapter_->require_shape(lora_b_name(module), {out, rank});
  if (adapter_->options().variant == LoraVariant::dora) adapter_->require_shape(lora_magnitude_name(module), {out});
  return w;
}

// W + scale B A, summed in f32.
void ModelFolder::read_merged(const Weight& w, int64_t begin, int64_t end, std::vector<std::byte>& out) const {
  if (!w.merged) return base_->read_unchecked(base_->at(w.name), begin, end, out);
  std::vector<float> values = base_values(w, begin, end);
  if (w.adapted) add_adapters(w, begin, end, values);
  const auto all = std::as_bytes(std::span(values));
  out.assign(all.begin(), all.end());
}

// Adds scale B A to `values`, the weight's elements [begin, end); DoRA then scales each output to its magnitude.
void ModelFolder::add_adapters(const Weight& w, int64_t begin, int64_t end, std::vector<float>& values) const {
  const std::string module = module_of(w.name);
  if (adapted_name_ != w.name) {
    a_ = adapter_->read(lora_a_name(module)), b_ = adapter_->read(lora_b_name(module));
    adapted_name_ = w.name;
    if (adapter_->options().variant == LoraVariant::dora) read_magnitudes(w);
  }
  add_product(w, begin, end, values);
  if (adapter_->options().variant != LoraVariant::dora) return;
  for (int64_t i = begin; i < end; ++i) values[size_t(i - begin)] *= output_factors_[size_t(output_of(w, i))];
}

// Output index of an element: its row, or its column for GPT-2.
int64_t ModelFolder::output_of(const Weight& w, int64_t element) const {
  return config_.model_type == ModelType::gpt2 ? element % w.shape[1] : element / w.shape[1];
}

// Computes magnitude / norm of W + scale B A per output, which takes one more pass over the weight.
void ModelFolder::read_magnitudes(const Weight& w) const {
  output_factors_ = adapter_->read(lora_magnitude_name(module_of(w.name)));
  std::vector<double> squares(output_factors_.size());
  for_each_rows(w, [&](int64_t begin, int64_t end) {
    std::vector<float> values = base_values(w, begin, end);
    add_product(w, begin, end, values);
    for (int64_t i = begin; i < end; ++i) {
      const auto x = double(values[size_t(i - begin)]);
      squares[size_t(output_of(w, i))] += x * x;
    }
  });
  for (size_t i = 0; i < squares.size(); ++i)
    output_factors_[i] = float(double(output_factors_[i]) / std::sqrt(squares[i]));
}

// values += scale B A
void ModelFolder::add_product(const Weight& w, int64_t begin, int64_t end, std::vector<float>& values) const {
  // Rows of the weight are outputs, or inputs for GPT-2.
  const bool in_out = config_.model_type == ModelType::gpt2;
  const int64_t rank = adapter_->options().rank, columns = w.shape[1], in = w.shape[in_out ? 0 : 1];
  const auto scale = float(adapter_->options().scale());
  std::vector<float> sum;
  for (int64_t at = begin; at < end;) {
    const int64_t row = at / columns, first = at % columns, n = std::min(columns - first, end - at);
    sum.assign(size_t(n), 0);
    for (int64_t r = 0; r < rank; ++r) {
      const float of_row = in_out ? a_[size_t(r * in + row)] : b_[size_t(row * rank + r)];
      for (int64_t i = 0; i < n; ++i) {
        const int64_t column = first + i;
        sum[size_t(i)] += of_row * (in_out ? b_[size_t(column * rank + r)] : a_[size_t(r * in + column)]);
      }
    }
    for (int64_t i = 0; i < n; ++i) values[size_t(at - begin + i)] += scale * sum[size_t(i)];
    at += n;
  }
}

ModelFolder::Weight ModelFolder::find_weight(const std::string& name, const Shape& shape, const ParamSpec& of) {
  if (base_) return merged_weight(name, shape, of);
  if (files_ && has(nf4_state_name(name))) return nf4_weight(name, shape);
  if (files_ && has(name + ".quant_state.bitsandbytes__fp4"))
    throw Error(cat(path_, ": tensor ", name, " is in FP4 of bitsandbytes, which is not supported; NF4 is"),
                Exit::usage);
  if (files_ && !has(name) && has(packed_name(name))) return packed(name, shape);
  if (files_ && !has(name) && has(gptq_name(name, GptqTensor::qweight))) return gptq(name, shape);
  if (!has(name) && has_biased_experts(config_.model_type))
    if (Weight fused = fused_weight(name, shape); !fused.name.empty()) return fused;
  if (!has(name))
    throw Error(cat(path_, ": has no tensor ", name, ", which its config.json needs (", name_of(config_.model_type),
                    ", ", config_.num_hidden_layers, " layers, tie_word_embeddings ",
                    config_.tie_word_embeddings ? "true" : "false", ")"));
  const Stored found = stored(name);
  if (found.shape != shape)
    throw Error(cat(path_, ": tensor ", name, " has shape ", found.shape, ", its config.json needs ", shape));
  return found.dtype == DType::f8_e4m3 ? with_scales(name, found.shape) : Weight{name, found.dtype, found.shape};
}

ModelFolder::Weight ModelFolder::gptq(const std::string& name, const Shape& shape) {
  std::string found;
  for (const GptqTensor t : kGptqTensors) {
    const std::string part = gptq_name(name, t);
    found += cat(" ", part, " ", has(part) ? cat(stored(part).dtype, " ", stored(part).shape) : "missing");
  }
  const auto is = [&](GptqTensor t, DType dtype, const Shape& of) {
    const std::string part = gptq_name(name, t);
    return has(part) && stored(part).dtype == dtype && stored(part).shape == of;
  };
  for (const int bits : {4, 8}) {
    if (shape.rank != 2 || !has(gptq_name(name, GptqTensor::scales))) break;
    const int64_t in_word = 32 / bits, groups = rows_of(stored(gptq_name(name, GptqTensor::scales)).shape);
    if (is(GptqTensor::qweight, DType::i32, {shape[1] / in_word, shape[0]}) && shape[1] % in_word == 0 &&
        is(GptqTensor::qzeros, DType::i32, {groups, shape[0] / in_word}) && shape[0] % in_word == 0 &&
        is(GptqTensor::scales, DType::f16, {groups, shape[0]}) && is(GptqTensor::g_idx, DType::i32, {shape[1]}))
      return {.name = name, .dtype = DType::f32, .shape = shape, .gptq_bits = bits};
  }
  throw Error(
      cat(path_, ": the tensors of the GPTQ matrix ", name, " ", shape, " do not fit 4 or 8 bits; found", found));
}

const std::vector<float>& ModelFolder::gptq_matrix_values(const Weight& w) const {
  if (unpacked_name_ == w.name) return unpacked_;
  GptqStored parts{.matrix = w.shape, .bits = w.gptq_bits};
  std::vector<std::byte> bytes;
  const auto read = [&](GptqTensor t) {
    const std::string part = gptq_name(w.name, t);
    const Stored found = stored(part);
    read_stored(part, found, 0, found.shape.numel(), bytes);
    return found.shape[0];
  };
  const auto integers = [&](GptqTensor t) {
    read(t);
    std::vector<int32_t> out(bytes.size() / sizeof(int32_t));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  };
  parts.qweight = integers(GptqTensor::qweight);
  parts.qzeros = integers(GptqTensor::qzeros);
  parts.g_idx = integers(GptqTensor::g_idx);
  const int64_t groups = read(GptqTensor::scales);
  to_floats(bytes, DType::f16, parts.scales);
  for (const int32_t group : parts.g_idx)
    if (group < 0 || group >= groups)
      throw Error(cat(path_, ": ", gptq_name(w.name, GptqTensor::g_idx), " names group ", group, " of ", groups));
  unpacked_ = gptq_values(parts);
  unpacked_name_ = w.name;
  return unpacked_;
}

// A matrix of packed integers. Its scales are small and are read here.
ModelFolder::Weight ModelFolder::packed(const std::string& name, const Shape& shape) {
  const std::string scales = packed_scale_name(name), packed = packed_name(name);
  const Stored found = stored(packed), scale = has(scales) ? stored(scales) : Stored{DType::f32, {}};
  const auto ints = shape.rank == 2 ? packed_groups(shape, found.shape, scale.shape) : std::nullopt;
  if (!ints || found.dtype != DType::i32)
    throw Error(cat(path_, ": tensors ", packed, " ", found.shape, " and ", scales, " ", scale.shape,
                    " do not make a matrix ", shape,
                    "; expected packed i32 values of 4 or 8 bits and one scale per group of a "
                    "row, without zero points or reordered columns"));
  check_float({scales, scale.dtype, scale.shape});
  std::vector<std::byte> bytes;
  read_stored(scales, scale, 0, scale.shape.numel(), bytes);
  to_floats(bytes, scale.dtype, scales_[name]);
  return {.name = name, .dtype = DType::f32, .shape = shape, .ints = ints};
}

void ModelFolder::read_packed(const Weight& w, int64_t begin, int64_t end, std::vector<std::byte>& out) const {
  const int64_t columns = w.shape[1], first = begin / columns, last = (end + columns - 1) / columns;
  const Shape packed = packed_shape(w.shape, *w.ints);
  const int64_t groups = packed_scale_shape(w.shape, *w.ints)[1];
  std::vector<std::byte> bytes;
  std::vector<float> values;
  read_stored(packed_name(w.name), {DType::i32, packed}, first * packed[1], last * packed[1], bytes);
  unpack_rows(bytes, std::span(scales_.at(w.name)).subspan(size_t(first * groups)), columns, *w.ints, values);
  const auto part =
      std::as_bytes(std::span(values).subspan(size_t(begin - first * columns), static_cast<size_t>(end - begin)));
  out.assign(part.begin(), part.end());
}

// A matrix in FP8. Its scales are small and are read here.
ModelFolder::Weight ModelFolder::with_scales(const std::string& name, const Shape& shape) {
  for (const Fp8Blocks blocks : {Fp8Blocks::tensor, Fp8Blocks::channel, Fp8Blocks::block}) {
    const std::string scales = scale_name(name, blocks);
    if (shape.rank != 2 || !has(scales)) continue;
    const Stored found = stored(scales);
    const bool one = blocks == Fp8Blocks::tensor && found.shape.numel() == 1;  // [] or [1]
    if (!one && found.shape != scale_shape(shape, blocks)) continue;
    check_float({scales, found.dtype, found.shape});
    std::vector<std::byte> bytes;
    read_stored(scales, found, 0, found.shape.numel(), bytes);
    to_floats(bytes, found.dtype, scales_[name]);
    return {name, DType::f32, shape, blocks};
  }
  throw Error(cat(path_, ": tensor ", name, " is f8_e4m3 of shape ", shape, "; expected its scales next to it: ", name,
                  "_scale of shape [1] or [", rows_of(shape), ", 1], or ", name,
                  "_scale_inv, one per 128 x 128 values"));
}

void ModelFolder::check_float(const Weight& w) const {
  if (w.dtype != DType::f32 && w.dtype != DType::bf16 && w.dtype != DType::f16)
    throw Error(cat(path_, ": tensor ", w.name, " is ", w.dtype, "; weights are expected in f32, bf16 or f16"));
}

// Some files also store the head of a tied model. It must equal the embedding, otherwise config.json is wrong.
void ModelFolder::check_tied_head(const Weight& table) {
  const Stored head = stored("lm_head.weight");
  bool same = head.dtype == table.dtype && head.shape == table.shape;
  std::vector<std::byte> a, b;
  if (same)
    for_each_rows(table, [&](int64_t begin, int64_t end) {
      if (!same) return;
      read_unchecked(table, begin, end, a);
      read_unchecked({"lm_head.weight", head.dtype, head.shape}, begin, end, b);
      same = a == b;
    });
  if (!same)
    throw Error(cat(path_, ": config.json says tie_word_embeddings true, but lm_head.weight is not ", table.name,
                    "; set it to false there"));
}

const ModelFolder::Weight& ModelFolder::at(const std::string& name) const {
  const auto it = places_.find(name);
  if (it == places_.end())
    throw Error(cat(path_, ": has no tensor ", printable(name), ", which the model needs; its config.json describes ",
                    weights_.size(), " others"));
  return weights_[it->second];
}

void ModelFolder::read(const Weight& w, int64_t begin, int64_t end, std::vector<std::byte>& out) const {
  read_run(w, begin * row_of(w.shape), end * row_of(w.shape), out);
}

void ModelFolder::read_run(const Weight& w, int64_t begin, int64_t end, std::vector<std::byte>& out) const {
  read_unchecked(w, begin, end, out);
  if (count_non_finite(out, w.dtype) > 0) refuse_non_finite();
}

void ModelFolder::read_unchecked(const Weight& w, int64_t begin, int64_t end, std::vector<std::byte>& out) const {
  if (gguf_) return gguf_->read_run(config_, w, begin, end, out);
  if (w.two_of_four) return read_two_of_four(w, begin, end, out);
  if (base_) return read_merged(w, begin, end, out);
  if (w.gptq_bits > 0) {
    const auto part = std::as_bytes(std::span(gptq_matrix_values(w)).subspan(size_t(begin), size_t(end - begin)));
    return out.assign(part.begin(), part.end());
  }
  if (w.fused) return read_fused(w, begin, end, out);
  if (w.nf4) return read_nf4(w, begin, end, out);
  if (w.ints) return read_packed(w, begin, end, out);
  if (has_average_minus_weight(w.name)) return read_sum(w.name, begin, end, out);
  if (!w.fp8) return read_stored(w.name, {w.dtype, w.shape}, begin, end, out);
  std::vector<std::byte> quantized;
  read_stored(w.name, {DType::f8_e4m3, w.shape}, begin, end, quantized);
  decode(quantized, begin, w.shape, *w.fp8, scales_.at(w.name), out);
}

void ModelFolder::read_stored(const std::string& name, const Stored& stored, int64_t begin, int64_t end,
                              std::vector<std::byte>& out) const {
  const auto size = int64_t(size_of(stored.dtype));
  out.resize(size_t((end - begin) * size));
  if (checkpoint_) return checkpoint_->read_run(stored_name(name), begin, end, out);
  const auto [file, entry] = files_->at(name);
  file->read_part(*entry, begin * size, out);
}

void ModelFolder::refuse_non_finite() const {
  constexpr int kNamed = 20;
  std::string names;
  int tensors = 0;
  std::vector<std::byte> bytes;
  for (const Weight& w : weights_) {
    int64_t values = 0;
    for_each_rows(w, [&](int64_t begin, int64_t end) {
      read_unchecked(w, begin, end, bytes);
      values += count_non_finite(bytes, w.dtype);
    });
    if (values > 0 && ++tensors <= kNamed) names += cat("\n  ", w.name, ": ", values, " of ", w.shape.numel());
  }
  if (tensors > kNamed) names += cat("\n  and ", tensors - kNamed, " more tensors");
  throw Error(cat(path_,
                  ": weights are NaN or infinite: the model is damaged or has diverged; take another copy or "
                  "checkpoint:",
                  names));
}

void ModelFolder::for_each_block(const Weight& w, const Block& block) const {
  std::vector<std::byte> bytes;
  for_each_rows(w, [&](int64_t begin, int64_t end) {
    read_run(w, begin, end, bytes);
    block(bytes);
  });
}

std::string weights_fingerprint(const ModelFolder& model) {
  constexpr int64_t kValues = 64;  // values per tensor
  std::string all;
  std::vector<std::byte> bytes;
  for (const ModelFolder::Weight& w : model.weights()) {
    const int64_t middle = w.shape.numel() / 2;
    model.read_run(w, middle, std::min(w.shape.numel(), middle + kValues), bytes);
    all += cat(w.name, " ", w.dtype, " ", w.shape, " ", xxh3_hex(bytes), "\n");
  }
  return xxh3_hex(all);
}

namespace {

std::string list_of(std::span<const int64_t> numbers) {
  std::string text = "[";
  for (const int64_t n : numbers) text += cat(text.size() > 1 ? ", " : "", n);
  return text + "]";
}

}  // namespace

void require_same_model(const ModelFolder& from, const ModelConfig& run, const std::string& key) {
  const ModelConfig& have = from.config();
  std::string refused;
  const auto same = [&](const char* what, const auto& a, const auto& b) {
    if (a != b) refused += cat("\n  model.", what, ": the weights have ", a, ", the run ", b);
  };
  same("model_type", name_of(have.model_type), name_of(run.model_type));
  same("vocab_size", have.vocab_size, run.vocab_size);
  same("hidden_size", have.hidden_size, run.hidden_size);
  same("num_hidden_layers", have.num_hidden_layers, run.num_hidden_layers);
  same("num_attention_heads", have.num_attention_heads, run.num_attention_heads);
  same("num_key_value_heads", have.num_key_value_heads, run.num_key_value_heads);
  same("head_dim", have.head_dim, run.head_dim);
  same("q_lora_rank", have.q_lora_rank, run.q_lora_rank);
  same("kv_lora_rank", have.kv_lora_rank, run.kv_lora_rank);
  same("qk_nope_head_dim", have.qk_nope_head_dim, run.qk_nope_head_dim);
  same("v_head_dim", have.v_head_dim, run.v_head_dim);
  same("rope_interleave", have.rope_interleave, run.rope_interleave);
  same("intermediate_size", have.intermediate_size, run.intermediate_size);
  same("num_experts", have.num_experts, run.num_experts);
  same("num_experts_per_tok", have.num_experts_per_tok, run.num_experts_per_tok);
  same("moe_intermediate_size", have.moe_intermediate_size, run.moe_intermediate_size);
  same("norm_topk_prob", have.norm_topk_prob, run.norm_topk_prob);
  same("n_group", have.n_group, run.n_group);
  same("topk_group", have.topk_group, run.topk_group);
  same("routed_scaling_factor", have.routed_scaling_factor, run.routed_scaling_factor);
  same("n_shared_experts", have.n_shared_experts, run.n_shared_experts);
  same("first_k_dense_replace", have.first_k_dense_replace, run.first_k_dense_replace);
  same("mlp_only_layers", list_of(have.mlp_only_layers), list_of(run.mlp_only_layers));
  same("decoder_sparse_step", have.decoder_sparse_step, run.decoder_sparse_step);
  same("shared_expert_intermediate_size", have.shared_expert_intermediate_size, run.shared_expert_intermediate_size);
  same("swiglu_limit", have.swiglu_limit, run.swiglu_limit);
  same("norm_eps", have.norm_eps, run.norm_eps);
  same("tie_word_embeddings", have.tie_word_embeddings, run.tie_word_embeddings);
  if (const std::string option = differing_option(have, run); !option.empty())
    refused += cat("\n  model.", option, " of the weights, the run has ", differing_option(run, have));
  if (have.model_type == ModelType::gpt2)
    same("max_position_embeddings", have.max_position_embeddings, run.max_position_embeddings);
  if (!refused.empty())
    throw Error(cat(key, ": ", from.path(), " is another model:", refused,
                    key == "init_from" ? "\nremove `model` from the configuration to use that of the folder" : ""),
                Exit::usage);
  const auto note = [&](const char* what, const auto& a, const auto& b) {
    if (a != b) log::info(key, ": model.", what, " of the weights is ", a, ", of the run ", b);
  };
  note("max_position_embeddings", have.max_position_embeddings, run.max_position_embeddings);
  note("rope_theta", have.rope_theta, run.rope_theta);
  note("rope_scaling.rope_type", name_of(have.rope_scaling.rope_type), name_of(run.rope_scaling.rope_type));
  note("rope_scaling.factor", have.rope_scaling.factor, run.rope_scaling.factor);
  note("final_logit_softcapping", have.final_logit_softcapping, run.final_logit_softcapping);
  note("sliding_window", have.sliding_window, run.sliding_window);
}

}  // namespace athanor
