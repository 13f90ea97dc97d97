#include "convert/gguf_weights.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "checkpoint/printable.h"
#include "config/choices.h"
#include "convert/floats.h"

namespace athanor {
namespace {

constexpr const char* kRopeFactors = "rope_freqs.weight";

class ConfigReader {
 public:
  explicit ConfigReader(const GgufReader& file) : file_(file) {
    arch_ = file_.text("general.architecture").value_or("");
    if (arch_ == "gpt2")
      m_ = model_defaults(ModelType::gpt2);
    else if (arch_ == "llama")
      m_ = model_defaults(find("expert_count").value_or(0) > 0 ? ModelType::mixtral : ModelType::llama);
    else if (arch_ == "qwen2")
      m_ = model_defaults(ModelType::qwen2);
    else if (arch_ == "qwen3")
      m_ = model_defaults(ModelType::qwen3);
    else if (arch_ == "qwen2moe")
      m_ = model_defaults(ModelType::qwen2_moe);
    else if (arch_ == "qwen3moe")
      m_ = model_defaults(ModelType::qwen3_moe);
    else if (arch_ == "olmoe")
      m_ = model_defaults(ModelType::olmoe);
    else if (arch_ == "dots1")
      m_ = model_defaults(ModelType::dots1);
    else if (arch_ == "deepseek2")
      m_ = model_defaults(number("expert_gating_func") == kGgufSoftmax ? ModelType::deepseek_v2
                                                                       : ModelType::deepseek_v3);
    else if (arch_ == "gpt-oss")
      m_ = model_defaults(ModelType::gpt_oss);
    else
      refuse(cat("general.architecture is ", printable(arch_),
                 "; known are gpt2, llama, qwen2, qwen3, qwen2moe, qwen3moe, olmoe, dots1, deepseek2 and gpt-oss"));
  }

  ModelConfig config() {
    const bool gpt2 = m_.model_type == ModelType::gpt2;
    m_.num_hidden_layers = size("block_count");
    if (m_.num_hidden_layers > int64_t(file_.tensors().size()))
      refuse(cat(arch_, ".block_count is ", m_.num_hidden_layers, "; the file has ", file_.tensors().size(),
                 " tensors, fewer than one a block"));
    m_.max_position_embeddings = size("context_length");
    m_.hidden_size = size("embedding_length");
    m_.intermediate_size = size("feed_forward_length");
    m_.num_attention_heads = size("attention.head_count");
    const auto embedding = file_.tensors().find("token_embd.weight");
    if (embedding == file_.tensors().end()) refuse("has no tensor token_embd.weight");
    m_.vocab_size = embedding->second.rows();
    m_.norm_eps = number(gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon");
    m_.tie_word_embeddings = !file_.tensors().contains("output.weight");
    m_.bos_token_id = token("tokenizer.ggml.bos_token_id");
    m_.eos_token_id = token("tokenizer.ggml.eos_token_id");
    if (!gpt2) add_rope();
    add_experts();
    complete(m_);
    validate(m_, file_.path());
    return m_;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { throw Error(cat(file_.path(), ": ", why), Exit::usage); }
  std::optional<double> find(const char* name) const { return file_.number(cat(arch_, ".", name)); }
  double number(const char* name) const {
    const auto value = find(name);
    if (!value) refuse(cat("has no key ", arch_, ".", name));
    return *value;
  }
  int64_t size(const char* name, int64_t least = 1) const {
    const double value = number(name);
    if (!(value >= double(least) && value < 1e9))
      refuse(cat(arch_, ".", name, " is ", value, "; expected ", least, " to 1e9"));
    return int64_t(value);
  }
  int64_t token(const char* key) const {
    const double id = file_.number(key).value_or(-1);
    if (!(id >= -1 && id < double(m_.vocab_size)))
      refuse(cat(key, " is ", id, "; expected 0 to ", m_.vocab_size - 1, ", rows of token_embd.weight"));
    return int64_t(id);
  }

  void add_rope() {
    m_.num_key_value_heads = find("attention.head_count_kv") ? size("attention.head_count_kv") : m_.num_attention_heads;
    if (find("attention.key_length")) m_.head_dim = size("attention.key_length");
    if (has_latent_attention(m_.model_type)) add_latent_attention();
    m_.rope_theta = find("rope.freq_base").value_or(10000.0);
    const int64_t whole = m_.head_dim > 0 ? m_.head_dim : m_.hidden_size / m_.num_attention_heads;
    const int64_t head = has_latent_attention(m_.model_type) ? m_.qk_rope_head_dim : whole;
    if (const double rotated = find("rope.dimension_count").value_or(double(head)); rotated != double(head))
      refuse(cat(arch_, ".rope.dimension_count is ", rotated, "; expected a whole head, ", head));
    if (const double factor = find("rope.scaling.attn_factor").value_or(1.0); factor != 1)
      refuse(cat(arch_, ".rope.scaling.attn_factor is ", factor, "; expected 1"));
    if (file_.tensors().contains(kRopeFactors))
      refuse(cat(kRopeFactors,
                 " scales RoPE by one factor for each frequency, which is not supported; use the model's folder in "
                 "Hugging Face's layout"));
    const auto type = file_.text(cat(arch_, ".rope.scaling.type")).value_or("none");
    if (type == "none") return;
    if (type != "linear" && type != "yarn")
      refuse(cat(arch_, ".rope.scaling.type is ", printable(type), "; expected none, linear or yarn"));
    m_.rope_scaling.rope_type = type == "linear" ? RopeType::linear : RopeType::yarn;
    m_.rope_scaling.factor = number("rope.scaling.factor");
    if (type == "linear") return;
    m_.rope_scaling.original_max_position_embeddings = size("rope.scaling.original_context_length");
    m_.rope_scaling.beta_fast = find("rope.scaling.yarn_beta_fast").value_or(32.0);
    m_.rope_scaling.beta_slow = find("rope.scaling.yarn_beta_slow").value_or(1.0);
    if (!has_latent_attention(m_.model_type)) return;
    m_.rope_scaling.mscale = m_.rope_scaling.mscale_all_dim = number("rope.scaling.yarn_log_multiplier") / kGgufYarnLog;
  }

  void add_latent_attention() {
    m_.q_lora_rank = find("attention.q_lora_rank") ? size("attention.q_lora_rank") : 0;
    m_.kv_lora_rank = size("attention.kv_lora_rank");
    m_.qk_rope_head_dim = size("rope.dimension_count");
    m_.head_dim = size("attention.key_length_mla");
    m_.qk_nope_head_dim = m_.head_dim - m_.qk_rope_head_dim;
    m_.v_head_dim = size("attention.value_length_mla");
    m_.num_key_value_heads = m_.num_attention_heads;
    m_.rope_interleave = true;
  }

  void add_experts() {
    if (!has_experts(m_.model_type)) {
      if (find("expert_count").value_or(0) > 0) refuse(cat(arch_, ".expert_count: ", arch_, " has no experts"));
      return;
    }
    m_.num_experts = size("expert_count");
    m_.num_experts_per_tok = size("expert_used_count");
    m_.norm_topk_prob = gguf_divides_weights(m_.model_type);
    if (has_expert_width(m_.model_type)) m_.moe_intermediate_size = size("expert_feed_forward_length");
    if (has_shared_expert_gate(m_.model_type))
      m_.shared_expert_intermediate_size =
          find("expert_shared_feed_forward_length") ? size("expert_shared_feed_forward_length") : m_.intermediate_size;
    if (gguf_has_routing_keys(m_.model_type)) add_routing();
    if (m_.model_type == ModelType::gpt_oss) m_.sliding_window = size("attention.sliding_window");
    for (int64_t layer = 0; layer < m_.num_hidden_layers; ++layer) {
      if (!has_experts(m_, layer)) continue;
      const std::string name = cat("blk.", layer, ".ffn_gate_exps.weight");
      const auto it = file_.tensors().find(name);
      const int64_t stored = it == file_.tensors().end() ? 0 : it->second.shape.front();
      if (stored != m_.num_experts)
        refuse(cat(arch_, ".expert_count is ", m_.num_experts, "; the tensor ", name, " has ", stored));
    }
  }

  void add_routing() {
    const auto count = [&](const char* name) { return find(name) ? size(name, 0) : 0; };
    const uint32_t scores = m_.scoring_func == RouterScore::sigmoid ? kGgufSigmoid : kGgufSoftmax;
    if (const double given = find("expert_gating_func").value_or(kGgufSigmoid); given != scores)
      refuse(cat(arch_, ".expert_gating_func is ", given, "; expected ", scores, ", ", name_of(m_.scoring_func)));
    if (find("expert_group_count").value_or(1) > 1) {
      m_.n_group = size("expert_group_count");
      m_.topk_group = size("expert_group_used_count");
    }
    m_.first_k_dense_replace = count("leading_dense_block_count");
    m_.n_shared_experts = count("expert_shared_count");
    m_.routed_scaling_factor = find("expert_weights_scale").value_or(1);
    m_.norm_topk_prob = find("expert_weights_norm").value_or(0) != 0;
  }

  const GgufReader& file_;
  std::string arch_;
  ModelConfig m_;
};

}  // namespace

ModelConfig gguf_config(const GgufReader& file) { return ConfigReader(file).config(); }

std::optional<GgufWeights::LatentHeads> GgufWeights::latent_heads(const std::string& name) const {
  const auto names = latent_head_names(name);
  if (!names) return {};
  const auto keys = file_.tensors().find(names->keys), values = file_.tensors().find(names->values);
  if (keys == file_.tensors().end() || values == file_.tensors().end()) return {};
  const std::vector<int64_t>&k = keys->second.shape, &v = values->second.shape;
  if (k.size() != 3 || v.size() != 3 || k[0] != v[0] || k[1] != v[2]) return {};
  return LatentHeads{&keys->second, &values->second};
}

GgufWeights::Place GgufWeights::place_of(const std::string& name) const {
  const auto expert = expert_name(name);
  const auto it = file_.tensors().find(expert ? expert->merged : gguf_name(name, architecture_));
  if (it == file_.tensors().end()) return {};
  const GgufReader::Stored& stored = it->second;
  if (!expert) return {&stored, 0, stored.rows()};
  const bool bias = name.ends_with(".bias");
  if (stored.shape.size() != (bias ? 2 : 3) || expert->number >= stored.shape[0]) return {};
  const int64_t rows = bias ? 1 : stored.shape[1];
  return {&stored, expert->number * rows, rows};
}

bool GgufWeights::has(const std::string& name) const {
  return latent_head_names(name) ? latent_heads(name).has_value() : place_of(name).stored != nullptr;
}

Shape GgufWeights::shape_of(const std::string& name) const {
  if (const auto heads = latent_heads(name)) return {heads->keys->shape[0] * heads->rows(), heads->values->columns()};
  const Place place = place_of(name);
  if (is_row_vector(name)) return {place.rows, place.stored->columns()};
  if (place.stored->shape.size() == 1 || name.ends_with(".bias")) return {place.stored->columns()};
  const Shape shape{place.rows, place.stored->columns()};
  return gguf_layout({}, {name, DType::f32, shape}).transposed ? Shape{shape[1], shape[0]} : shape;
}

void GgufWeights::require_no_others(const std::vector<ModelFolder::Weight>& weights) const {
  std::map<const GgufReader::Stored*, int64_t> rows;  // number of rows used by the model, per tensor
  for (const auto& w : weights) {
    if (const auto heads = latent_heads(w.name)) {
      for (const GgufReader::Stored* part : {heads->keys, heads->values}) rows[part] = part->rows();
      continue;
    }
    const Place place = place_of(w.name);
    rows[place.stored] += place.rows;
  }
  for (const auto& [name, tensor] : file_.tensors())
    if (name != kRopeFactors && rows[&tensor] != tensor.rows())
      throw Error(cat(file_.path(), ": the tensor ", printable(name), " is no part of the model that its keys describe",
                      rows[&tensor] > 0 ? ", or has more experts" : ""));
}

void GgufWeights::read_run(const ModelConfig& m, const ModelFolder::Weight& w, int64_t begin, int64_t end,
                           std::vector<std::byte>& out) const {
  if (const auto heads = latent_heads(w.name)) return read_latent_heads(*heads, begin, end, out);
  const Place place = place_of(w.name);
  const GgufReader::Stored& stored = *place.stored;
  const GgufLayout layout = gguf_layout(m, w);
  const int64_t columns = stored.columns();
  std::vector<float> values, row;
  if (layout.transposed) {
    if (transposed_name_ != w.name) {
      file_.read_rows(stored, 0, stored.rows(), row);
      transposed_.resize(row.size());
      for (int64_t r = 0; r < stored.rows(); ++r)
        for (int64_t c = 0; c < columns; ++c) transposed_[size_t(c * stored.rows() + r)] = row[size_t(r * columns + c)];
      transposed_name_ = w.name;
    }
    values.assign(transposed_.begin() + begin, transposed_.begin() + end);
  } else if (layout.interleaved) {
    for (int64_t r = begin / columns; r * columns < end; ++r) {
      const int64_t from = interleaved_row(r, m.head_dim);
      file_.read_rows(stored, from, from + 1, row);
      values.insert(values.end(), row.begin() + std::max<int64_t>(0, begin - r * columns),
                    row.begin() + std::min(columns, end - r * columns));
    }
  } else {
    const int64_t first = begin / columns;
    file_.read_rows(stored, place.first + first, place.first + (end + columns - 1) / columns, row);
    values.assign(row.begin() + (begin - first * columns), row.begin() + (end - first * columns));
  }
  const auto bytes = std::as_bytes(std::span(values));
  out.assign(bytes.begin(), bytes.end());
}

void GgufWeights::read_latent_heads(const LatentHeads& heads, int64_t begin, int64_t end,
                                    std::vector<std::byte>& out) const {
  const int64_t rank = heads.values->columns(), of_head = heads.rows() * rank;
  std::vector<float> run, head, keys;
  for (int64_t h = begin / of_head; h * of_head < end; ++h) {
    file_.read_rows(*heads.keys, h * rank, (h + 1) * rank, keys);
    head = transposed(keys, rank);
    std::vector<float> values;
    const int64_t value_rows = heads.values->shape[1];
    file_.read_rows(*heads.values, h * value_rows, (h + 1) * value_rows, values);
    head.insert(head.end(), values.begin(), values.end());
    run.insert(run.end(), head.begin() + std::max<int64_t>(0, begin - h * of_head),
               head.begin() + std::min(of_head, end - h * of_head));
  }
  const auto bytes = std::as_bytes(std::span(run));
  out.assign(bytes.begin(), bytes.end());
}

}  // namespace athanor
