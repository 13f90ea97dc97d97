#include "convert/gguf_model.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "config/choices.h"
#include "convert/floats.h"
#include "convert/gguf_names.h"
#include "convert/new_folder.h"
#include "model/model.h"

namespace athanor {
namespace {

// Interleaves the two halves of a head's rows: row i of the first half is followed by row i of the second.
void interleave_halves(std::vector<float>& head, int64_t rows) {
  const size_t row = head.size() / size_t(rows);
  std::vector<float> out;
  out.reserve(head.size());
  for (int64_t i = 0; i < rows / 2; ++i)
    for (const int64_t from : {i, i + rows / 2}) {
      const auto begin = head.begin() + std::ptrdiff_t(size_t(from) * row);
      out.insert(out.end(), begin, begin + std::ptrdiff_t(row));
    }
  head = std::move(out);
}

class GgufModelWriter {
 public:
  GgufModelWriter(const ModelFolder& model, const GgufOptions& options)
      : model_(model), m_(model.config()), arch_(gguf_architecture(m_.model_type)), options_(options) {
    if (!m_.tie_word_embeddings || gguf_ties_embeddings(m_.model_type)) return;
    m_.tie_word_embeddings = false;
    copies_embedding_ = true;
  }

  int64_t write(const std::string& path) {
    refuse_what_differs();
    add_metadata();
    add_rope();
    add_gguf_tokenizer(file_, model_);
    add_file_type();
    if (m_.rope_scaling.rope_type == RopeType::llama3) add_rope_factors();
    std::map<std::string, std::map<int64_t, const ModelFolder::Weight*>> experts;  // by name and expert index
    for (const auto& weight : model_.weights()) {
      if (const auto expert = expert_name(weight.name))
        experts[expert->merged][expert->number] = &weight;
      else if (const auto heads = latent_head_names(weight.name))
        add_latent_heads(weight, *heads);
      else
        add(weight);
    }
    if (copies_embedding_) {
      const ModelFolder::Weight& embedding = model_.at("model.embed_tokens.weight");
      add_rows("output.weight", {&embedding}, gguf_layout(m_, embedding));
    }
    for (const auto& [name, of_number] : experts) {
      std::vector<const ModelFolder::Weight*> all;
      for (const auto& [number, weight] : of_number) all.push_back(weight);
      GgufLayout layout = gguf_layout(m_, *all.front());
      layout.shape.insert(layout.shape.begin(), int64_t(all.size()));
      add_rows(name, all, layout);
    }
    require_blocks();
    file_.sort_tensors();
    return file_.write(path);
  }

 private:
  std::string key(const char* name) const { return cat(arch_, ".", name); }

  void refuse(const char* what, const std::string& why) const {
    throw Error(cat("gguf: ", model_.path(), ": ", what, ": ", why), Exit::usage);
  }

  void refuse_what_differs() const {
    const bool routing = gguf_has_routing_keys(m_.model_type);
    if (routing && m_.n_group > 1 && m_.model_type != ModelType::deepseek_v3)
      refuse("n_group", cat("llama.cpp does not choose groups of experts as ", name_of(m_.model_type), " does"));
    if (m_.model_type == ModelType::dots1 && m_.num_key_value_heads != m_.num_attention_heads)
      refuse("num_key_value_heads", cat("llama.cpp's dots1 has as many as num_attention_heads, ",
                                        m_.num_attention_heads, ", got ", m_.num_key_value_heads));
    if (routing && m_.n_shared_experts == 0)
      refuse("n_shared_experts", cat("llama.cpp's ", arch_, " needs at least 1, got 0"));
    const bool qwen2 = m_.model_type == ModelType::qwen2 || m_.model_type == ModelType::qwen2_moe;
    if (qwen2 && m_.head_dim * m_.num_attention_heads != m_.hidden_size)
      refuse("head_dim", cat("llama.cpp's ", arch_, " has hidden_size / num_attention_heads, ", m_.hidden_size, " / ",
                             m_.num_attention_heads, ", got ", m_.head_dim));
    if (has_latent_attention(m_.model_type)) refuse_latent_attention();
    if (!routing && layers_with_experts(m_) > 0 && layers_with_experts(m_) < m_.num_hidden_layers)
      refuse(m_.decoder_sparse_step > 1 ? "decoder_sparse_step" : "mlp_only_layers",
             cat("llama.cpp's ", arch_, " has experts in all layers"));
    if (has_experts(m_.model_type) && !routing && m_.norm_topk_prob != gguf_divides_weights(m_.model_type))
      refuse("norm_topk_prob", cat("llama.cpp ", m_.norm_topk_prob ? "does not divide" : "divides",
                                   " the weights of a token's experts by their sum for ", arch_));
    if (m_.model_type == ModelType::gpt_oss) refuse_gpt_oss();
    const RopeScaling &r = m_.rope_scaling, usual{.rope_type = r.rope_type, .factor = r.factor};
    if (r.rope_type == RopeType::llama3 && std::string_view(arch_) != "llama")
      refuse("rope_scaling llama3", cat("llama.cpp supports it only for llama, not for ", arch_));
    if (r.rope_type != RopeType::yarn) return;
    if (!has_latent_attention(m_.model_type) && attention_factor(r) != attention_factor(usual))
      refuse("rope_scaling.attention_factor", "llama.cpp computes it from the factor");
    if (m_.model_type == ModelType::gpt_oss && !r.truncate)
      return log::warn("gguf: llama.cpp rounds the bounds of YaRN's blend, which rope_scaling.truncate false does not");
    if (!r.truncate) refuse("rope_scaling.truncate", "llama.cpp rounds the bounds of the blend");
  }

  void refuse_latent_attention() const {
    if (!m_.rope_interleave) refuse("rope_interleave", "llama.cpp rotates neighbouring channels; expected true");
    if (m_.q_lora_rank == 0 && m_.num_hidden_layers != 26 && m_.num_hidden_layers != 27)
      refuse("q_lora_rank",
             cat("llama.cpp's deepseek2 knows models without it by their 26 or 27 layers, got ", m_.num_hidden_layers));
    const RopeScaling& r = m_.rope_scaling;
    if (r.rope_type == RopeType::linear)
      refuse("rope_scaling linear", "llama.cpp's deepseek2 would scale attention scores too");
    if (r.rope_type == RopeType::yarn && (r.mscale != r.mscale_all_dim || r.mscale == 0 || r.attention_factor != 0))
      refuse("rope_scaling.mscale",
             cat("llama.cpp's deepseek2 needs mscale equal to mscale_all_dim, above 0, and no "
                 "attention_factor; got mscale ",
                 r.mscale, ", mscale_all_dim ", r.mscale_all_dim, ", attention_factor ", r.attention_factor));
  }

  void refuse_gpt_oss() const {
    if (m_.swiglu_limit != 7) refuse("swiglu_limit", cat("llama.cpp has 7, got ", m_.swiglu_limit));
    ModelConfig usual = m_;
    usual.layer_types.clear();
    complete(usual);
    if (m_.layer_types != usual.layer_types)
      refuse("layer_types", "llama.cpp's gpt-oss has sliding_attention and full_attention in turn");
  }

  void add_metadata() {
    const bool gpt2 = m_.model_type == ModelType::gpt2;
    file_.set("general.architecture", arch_);
    file_.set("general.name", std::filesystem::absolute(model_.path()).lexically_normal().filename().string());
    file_.set(key("block_count"), uint32_t(m_.num_hidden_layers));
    file_.set(key("context_length"), uint32_t(context_length()));
    file_.set(key("embedding_length"), uint32_t(m_.hidden_size));
    file_.set(key("feed_forward_length"), uint32_t(m_.intermediate_size));
    file_.set(key("attention.head_count"), uint32_t(m_.num_attention_heads));
    file_.set(key("vocab_size"), uint32_t(m_.vocab_size));
    file_.set(key(gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"), float(m_.norm_eps));
    if (gpt2) return;
    if (has_experts(m_.model_type)) {
      file_.set(key("expert_count"), uint32_t(m_.num_experts));
      file_.set(key("expert_used_count"), uint32_t(m_.num_experts_per_tok));
      file_.set(key("expert_feed_forward_length"), uint32_t(m_.moe_intermediate_size));
    }
    if (has_shared_expert_gate(m_.model_type))
      file_.set(key("expert_shared_feed_forward_length"), uint32_t(m_.shared_expert_intermediate_size));
    if (gguf_has_routing_keys(m_.model_type)) {
      file_.set(key("leading_dense_block_count"), uint32_t(m_.first_k_dense_replace));
      file_.set(key("expert_shared_count"), uint32_t(m_.n_shared_experts));
      file_.set(key("expert_weights_scale"), float(m_.routed_scaling_factor));
      file_.set(key("expert_weights_norm"), m_.norm_topk_prob);
      file_.set(key("expert_gating_func"), m_.scoring_func == RouterScore::sigmoid ? kGgufSigmoid : kGgufSoftmax);
    }
    if (m_.n_group > 1) {
      file_.set(key("expert_group_count"), uint32_t(m_.n_group));
      file_.set(key("expert_group_used_count"), uint32_t(m_.topk_group));
    }
    if (has_latent_attention(m_.model_type)) return add_latent_attention();
    if (m_.model_type == ModelType::gpt_oss) file_.set(key("attention.sliding_window"), uint32_t(gpt_oss_window()));
    file_.set(key("attention.head_count_kv"), uint32_t(m_.num_key_value_heads));
    file_.set(key("attention.key_length"), uint32_t(m_.head_dim));
    file_.set(key("attention.value_length"), uint32_t(m_.head_dim));
  }

  // llama.cpp computes attention on the latent vectors, with one key head of kv_lora_rank + qk_rope_head_dim channels.
  void add_latent_attention() {
    if (m_.q_lora_rank > 0) file_.set(key("attention.q_lora_rank"), uint32_t(m_.q_lora_rank));
    file_.set(key("attention.kv_lora_rank"), uint32_t(m_.kv_lora_rank));
    file_.set(key("attention.head_count_kv"), uint32_t{1});
    file_.set(key("attention.key_length"), uint32_t(m_.kv_lora_rank + m_.qk_rope_head_dim));
    file_.set(key("attention.value_length"), uint32_t(m_.kv_lora_rank));
    file_.set(key("attention.key_length_mla"), uint32_t(m_.head_dim));
    file_.set(key("attention.value_length_mla"), uint32_t(m_.v_head_dim));
  }

  // Added last, as in files of llama.cpp's quantizer.
  void add_file_type() {
    if (ggml_info(options_.mixture.type).quantize) file_.set("general.quantization_version", uint32_t{2});
    file_.set("general.file_type", options_.mixture.file_type);
  }

  // llama.cpp has no sliding window for these architectures, so the context is limited to the window, within which full
  // attention is equivalent.
  int64_t context_length() const {
    if (m_.model_type == ModelType::gpt_oss || m_.sliding_window == 0 ||
        m_.sliding_window >= m_.max_position_embeddings)
      return m_.max_position_embeddings;
    log::warn("gguf: llama.cpp has no sliding window for ", arch_, ": the file's context ends with the window, ",
              m_.sliding_window, " of ", m_.max_position_embeddings, " tokens");
    return m_.sliding_window;
  }

  // llama.cpp needs one; a window as long as the context is full attention.
  int64_t gpt_oss_window() const { return m_.sliding_window > 0 ? m_.sliding_window : m_.max_position_embeddings; }

  void add_rope() {
    if (m_.model_type == ModelType::gpt2) return;
    file_.set(key("rope.dimension_count"), uint32_t(rotary_dim(m_)));
    file_.set(key("rope.freq_base"), float(m_.rope_theta));
    const RopeScaling& r = m_.rope_scaling;
    if (r.rope_type != RopeType::linear && r.rope_type != RopeType::yarn) return;
    file_.set(key("rope.scaling.type"), std::string(name_of(r.rope_type)));
    file_.set(key("rope.scaling.factor"), float(r.factor));
    if (r.rope_type == RopeType::linear) return;
    file_.set(key("rope.scaling.original_context_length"), uint32_t(r.original_max_position_embeddings));
    file_.set(key("rope.scaling.yarn_beta_fast"), float(r.beta_fast));
    file_.set(key("rope.scaling.yarn_beta_slow"), float(r.beta_slow));
    if (has_latent_attention(m_.model_type))
      file_.set(key("rope.scaling.yarn_log_multiplier"), float(kGgufYarnLog * r.mscale_all_dim));
  }

  // Factors that divide the unscaled frequencies: llama.cpp's form of llama3's RoPE scaling.
  void add_rope_factors() {
    ModelConfig plain = m_;
    plain.rope_scaling = {};
    const std::vector<double> from = rope_frequencies(plain), to = rope_frequencies(m_);
    std::vector<float> factors;
    for (size_t i = 0; i < from.size(); ++i) factors.push_back(float(from[i] / to[i]));
    file_.add({.name = "rope_freqs.weight",
               .type = GgmlType::f32,
               .shape = {int64_t(factors.size())},
               .make = [factors](const ByteSink& sink) { sink(std::as_bytes(std::span(factors))); }});
  }

  void add(const ModelFolder::Weight& w) {
    const GgufLayout layout = gguf_layout(m_, w);
    if (!layout.transposed) return add_rows(gguf_name(w.name, arch_), {&w}, layout);
    const std::string name = gguf_name(w.name, arch_);
    const GgmlType type = type_of(w, name, layout.shape);
    file_.add({.name = name, .type = type, .shape = layout.shape, .make = [=, this, &w](const ByteSink& sink) {
                 emit(type, w, layout.shape.back(), transposed(floats(w, 0, w.shape[0]), w.shape[0]), sink);
               }});
  }

  void emit(GgmlType type, const ModelFolder::Weight& w, int64_t columns, const std::vector<float>& values,
            const ByteSink& sink) const {
    const std::vector<float> importance = importance_of(w.name);
    std::vector<std::byte> bytes;
    append_ggml(type, {.values = values, .columns = columns, .importance = importance, .what = w.name}, options_.pool,
                bytes);
    sink(bytes);
  }

  // Adds one tensor, made of one weight, or of several experts' weights of equal shape, concatenated.
  void add_rows(const std::string& name, const std::vector<const ModelFolder::Weight*>& weights,
                const GgufLayout& layout) {
    const Shape& each = weights.front()->shape;
    const GgmlType type = type_of(*weights.front(), name, layout.shape);
    const int64_t rows = each.dim[0];
    const int64_t step = layout.interleaved ? m_.head_dim : std::max<int64_t>(1, (1 << 20) / (each.numel() / rows));
    file_.add({.name = name, .type = type, .shape = layout.shape, .make = [=, this](const ByteSink& sink) {
                 for (const ModelFolder::Weight* w : weights)
                   for (int64_t row = 0; row < rows; row += step) {
                     std::vector<float> values = floats(*w, row, std::min(row + step, rows));
                     if (layout.interleaved) interleave_halves(values, step);
                     emit(type, *w, layout.shape.back(), values, sink);
                   }
               }});
  }

  void add_latent_heads(const ModelFolder::Weight& w, const LatentHeadNames& names) {
    const int64_t heads = m_.num_attention_heads, nope = m_.qk_nope_head_dim, value = m_.v_head_dim,
                  rank = m_.kv_lora_rank;
    const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, auto&& head) {
      const GgmlType type = type_of(w, name, shape);
      file_.add({.name = name, .type = type, .shape = shape, .make = [=, this](const ByteSink& sink) {
                   for (int64_t h = 0; h < heads; ++h) {
                     std::vector<std::byte> bytes;
                     append_ggml(type, {.values = head(h), .columns = shape.back(), .what = name}, options_.pool,
                                 bytes);
                     sink(bytes);
                   }
                 }});
    };
    add(names.keys, {heads, rank, nope}, [=, this, &w](int64_t h) {
      const int64_t first = h * (nope + value);
      return transposed(floats(w, first, first + nope), nope);
    });
    add(names.values, {heads, value, rank}, [=, this, &w](int64_t h) {
      const int64_t first = h * (nope + value) + nope;
      return floats(w, first, first + value);
    });
  }

  GgmlType type_of(const ModelFolder::Weight& w, const std::string& name, const std::vector<int64_t>& shape) {
    const bool router = name.ends_with("ffn_gate_inp.weight");
    if (shape.size() == 1 || router || name.ends_with(".bias") || w.name == "transformer.wpe.weight")
      return GgmlType::f32;
    const GgufMixture& mix = options_.mixture;
    const int64_t block = ggml_info(mix.type).block;
    const GgmlType type = matrix_type(mix, m_, name, shape.back(), !options_.importance.empty());
    if (shape.back() % block == 0)
      ++whole_blocks_;
    else
      log::info("gguf: ", w.name, " is written as ", ggml_info(type).name, ", since its rows of ", shape.back(),
                " values are no multiple of ", block);
    return type;
  }

  std::vector<float> importance_of(const std::string& name) const {
    const auto it = options_.importance.find(name);
    return it == options_.importance.end() ? std::vector<float>() : it->second.means();
  }

  // Rejects a mixture if no matrix can have its type.
  void require_blocks() const {
    const GgmlTypeInfo& most = ggml_info(options_.mixture.type);
    if (whole_blocks_ > 0) return;
    refuse(options_.mixture.name,
           cat("its type ", most.name, " has blocks of ", most.block, " values, and no matrix has rows of a multiple: ",
               "hidden_size ", m_.hidden_size, ", intermediate_size ", m_.intermediate_size, "; take ",
               most.block > 32 && m_.hidden_size % 32 == 0 ? "q5_0, q5_1 or q8_0" : "f16 or bf16"));
  }

  std::vector<float> floats(const ModelFolder::Weight& w, int64_t begin, int64_t end) const {
    std::vector<std::byte> bytes;
    std::vector<float> values;
    model_.read(w, begin, end, bytes);
    to_floats(bytes, w.dtype, values);
    return values;
  }

  const ModelFolder& model_;
  ModelConfig m_;
  const char* arch_;
  const GgufOptions& options_;
  GgufFile file_;
  bool copies_embedding_ = false;  // a tied embedding is also written as the output matrix
  int64_t whole_blocks_ = 0;       // matrices whose rows consist of whole blocks of the mixture's type
};

}  // namespace

int64_t write_gguf(const ModelFolder& model, const std::string& path, const GgufOptions& options) {
  require_new_path(path);
  return GgufModelWriter(model, options).write(path);
}

}  // namespace athanor
