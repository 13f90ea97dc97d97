// Llama and its relatives [Grattafiori et al. 2024, sec. 3.2]: RMSNorm, rotary positions, SwiGLU, grouped queries.
// Qwen2 adds a QKV bias, Qwen3 a norm of queries and keys, Mistral a sliding window: all from the config. Mixtral
// [Jiang et al. 2024], Qwen3-MoE and OLMoE [Muennighoff et al. 2024] have experts in place of the feed-forward layer.
#include "model/families.h"

namespace athanor {
namespace {

class Llama final : public Model {
 public:
  explicit Llama(const ModelConfig& config) : Model(config) { has_rope_ = true; }

  void declare() override {
    const ModelConfig& m = config_;
    wte_ = vocab_table("embed_tokens", 0, "model.embed_tokens.weight");
    head_ = m.tie_word_embeddings ? wte_ : vocab_table("lm_head", head_unit(), "lm_head.weight");
    for (int l = 0; l < int(m.num_hidden_layers); ++l) layers_.push_back(declare_layer(l));
    norm_f_ = norm("model.norm", head_unit(), final_gain());
  }

  Var embed(Ctx& c, const Batch& batch) override { return embedding(net(c), batch, wte_, {}); }

  Var block(Ctx& c, int l, Var in, const Batch& batch) override {
    const Layer& w = layers_[size_t(l)];
    const AttentionShape shape = attention_shape();
    auto [h, x] = fork_norm(net(c), std::move(in), w.norm1, &w.qkv);  // [N, C]
    if (config_.qk_norm) {
      x = linear(net(c), std::move(x), w.qkv);  // [N, (H + 2K) D]
      x = qk_norm(net(c), std::move(x), w.q_norm, w.k_norm, normed_shape(), float(config_.norm_eps));
      x = rope(net(c), std::move(x), batch, rope_table(), shape);
    } else {
      x = rotated_linear(net(c), std::move(x), w.qkv, batch, rope_table(), shape);
    }
    x = attention(net(c), std::move(x), batch, rope_table(), shape, l, w.out);  // [N, H D]
    Var after = linear(net(c), std::move(x), w.out, std::move(h));
    if (w.experts.router) {
      auto [h2, y] = fork_norm(net(c), std::move(after), w.norm2);
      return moe(net(c), std::move(y), w.experts, l, std::move(h2));  // [N, C]
    }
    auto [h2, y] = fork_norm(net(c), std::move(after), w.norm2, &w.gate_up);
    return swiglu_mlp(net(c), std::move(y), w.gate_up, w.down, std::move(h2));  // [N, C]
  }

  Var final_norm(Ctx& c, Var h) override { return finish(c, fork_norm(net(c), std::move(h), norm_f_)); }

 private:
  struct Layer {
    Norm norm1;
    Linear qkv;
    Param q_norm, k_norm;
    Linear out;
    Norm norm2;
    Linear gate_up, down;  // or
    Moe experts;
  };

  bool norms_all_heads() const { return config_.model_type == ModelType::olmoe; }
  // OLMoE's norm takes all heads of queries together, and all of keys, of which there are as many.
  AttentionShape normed_shape() const {
    AttentionShape shape = attention_shape();
    if (norms_all_heads()) shape.head_dim *= shape.heads, shape.heads = shape.kv_heads = 1;
    return shape;
  }

  Layer declare_layer(int l) {
    const ModelConfig& m = config_;
    const int64_t c = m.hidden_size, f = m.intermediate_size, d = m.head_dim;
    const int64_t q = m.num_attention_heads * d, kv = m.num_key_value_heads * d;
    const std::string p = cat("model.layers.", l, "."), a = p + "self_attn.", mlp = p + "mlp.";
    const int u = l + 1;
    Layer w{};
    w.norm1 = norm(p + "input_layernorm", u);
    w.qkv.w = matrix(a + "qkv.w", u,
                     {{a + "q_proj.weight", {q, c}}, {a + "k_proj.weight", {kv, c}}, {a + "v_proj.weight", {kv, c}}},
                     init_std(), {.axis = 0, .parts = {q, kv, kv}, .whole = d, .repeated = 1});
    if (m.attention_bias)
      w.qkv.b = vector(a + "qkv.b", u, {{a + "q_proj.bias", q}, {a + "k_proj.bias", kv}, {a + "v_proj.bias", kv}}, 0,
                       {.axis = 0, .parts = {q, kv, kv}, .whole = d, .repeated = 1});
    params_.feeds_attention(w.qkv.w, l);
    if (w.qkv.b) params_.feeds_attention(w.qkv.b, l);
    if (m.qk_norm) {
      const int64_t size = norms_all_heads() ? q : d;
      w.q_norm = vector(a + "q_norm", u, {{a + "q_norm.weight", size}}, 1, {}, PartialGradient::of_heads);
      w.k_norm = vector(a + "k_norm", u, {{a + "k_norm.weight", size}}, 1, {}, PartialGradient::of_heads);
    }
    w.out.w = matrix(a + "o_proj", u, {{a + "o_proj.weight", {c, q}}}, output_init_std(),
                     {.axis = 1, .parts = {q}, .whole = d});
    w.norm2 = norm(p + "post_attention_layernorm", u);
    if (has_experts(m.model_type)) {
      w.experts = declare_experts(p, u);
      return w;
    }
    w.gate_up.w = matrix(mlp + "gate_up", u, {{mlp + "gate_proj.weight", {f, c}}, {mlp + "up_proj.weight", {f, c}}},
                         init_std(), {.axis = 0, .parts = {f, f}});
    w.down.w =
        matrix(mlp + "down", u, {{mlp + "down_proj.weight", {c, f}}}, output_init_std(), {.axis = 1, .parts = {f}});
    return w;
  }

  Moe declare_experts(const std::string& block, int unit) {
    const ModelConfig& m = config_;
    const bool mixtral = m.model_type == ModelType::mixtral;
    const int64_t c = m.hidden_size, f = m.moe_intermediate_size, e = m.num_experts;
    const std::string p = block + (mixtral ? "block_sparse_moe." : "mlp.");
    std::vector<std::pair<std::string, Shape>> gates_and_ups, downs;
    for (int64_t i = 0; i < e; ++i) {
      const std::string expert = cat(p, "experts.", i, ".");
      gates_and_ups.push_back({expert + (mixtral ? "w1.weight" : "gate_proj.weight"), {f, c}});
      gates_and_ups.push_back({expert + (mixtral ? "w3.weight" : "up_proj.weight"), {f, c}});
      downs.push_back({expert + (mixtral ? "w2.weight" : "down_proj.weight"), {c, f}});
    }
    Moe layer{.router = matrix(p + "gate", unit, {{p + "gate.weight", {e, c}}}, init_std(), {}),
              .gate_up = matrix(p + "experts.gate_up", unit, gates_and_ups, init_std(), {}),
              .down = matrix(p + "experts.down", unit, downs, output_init_std(), {}),
              .experts = e,
              .chosen = m.num_experts_per_tok,
              .normalize = m.norm_topk_prob,
              .balance = float(m.router_aux_loss_coef),
              .z = float(m.router_z_loss_coef)};
    params_.belongs_to_experts(layer.gate_up, layer.experts, layer.chosen);
    params_.belongs_to_experts(layer.down, layer.experts, layer.chosen);
    return layer;
  }

  Norm norm(const std::string& name, int unit, float gain = 1) {
    const Param weight =
        vector(name, unit, {{name + ".weight", config_.hidden_size}}, gain, {}, PartialGradient::of_rows);
    return {NormKind::rms, weight, {}, float(config_.norm_eps)};
  }

  Param wte_;
  std::vector<Layer> layers_;
  Norm norm_f_{};
};

}  // namespace

std::unique_ptr<Model> make_llama(const ModelConfig& config) { return std::make_unique<Llama>(config); }

}  // namespace athanor
