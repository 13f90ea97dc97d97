// Llama and related families [Grattafiori et al. 2024, sec. 3.2]: RMSNorm, rotary positions, SwiGLU, grouped-query
// attention. Qwen2 adds a QKV bias, Qwen3 QK-norm, Mistral a sliding window, all set by the config. Mixtral [Jiang et
// al. 2024], Qwen2-MoE, Qwen3-MoE and OLMoE [Muennighoff et al. 2024] have experts instead of the feed-forward layer;
// so has dots1 [rednote 2025], routed as in DeepSeek-V3. dots1 and Qwen2-MoE have shared experts, those of Qwen2-MoE
// with a gate; these two and Qwen3-MoE may have dense layers. The family athanor can combine the other options, and
// some options of published speed runs, freely. DeepSeek-V2 and V3 have such experts, too, and multi-head latent
// attention (nn/latent_attention.h). GPT-OSS has attention sinks, and biases of attention, routers and experts.
#include "model/families.h"
#include "nn/latent_attention.h"

namespace athanor {
namespace {

class Llama final : public Model {
 public:
  explicit Llama(const ModelConfig& config) : Model(config) { has_rope_ = true; }

  void declare() override {
    const ModelConfig& m = config_;
    wte_ = vocab_table("embed_tokens", 0, "model.embed_tokens.weight");
    head_ = m.tie_word_embeddings ? wte_ : vocab_table("lm_head", head_unit(), "lm_head.weight");
    if (m.lm_head_bias) head_bias_ = vocab_bias("lm_head.b", head_unit(), "lm_head.bias");
    if (m.embedding_norm) norm_0_ = norm("model.embed_norm", 0);
    if (m.smear_channels > 0) declare_smear();
    for (int64_t t = 0; t < value_tables(m); ++t) value_tables_.push_back(declare_value_table(t));
    if (has_router_bias(m.model_type)) declare_router_bias();
    for (int l = 0; l < int(m.num_hidden_layers); ++l) layers_.push_back(declare_layer(l));
    norm_f_ = norm("model.norm", head_unit(), final_gain());
    skip_f_ = skip_lambda("model.skip_lambda", head_unit(), m.num_hidden_layers);
  }

  Var embed(Ctx& c, const Batch& batch, Taps& taps) override {
    taps.value_rows.resize(value_tables_.size());
    for (size_t t = 0; t < value_tables_.size(); ++t) tap_rows(net(c), batch, value_tables_[t], taps.value_rows[t]);
    const auto normed = [&](Var h) {
      return config_.embedding_norm ? finish(c, fork_norm(net(c), std::move(h), norm_0_)) : std::move(h);
    };
    Var h = normed(embedding(net(c), batch, wte_, {}));
    if (!smear_gate_.w) return h;
    Var previous = normed(previous_embedding(net(c), batch, wte_));
    auto [all, first] = fork_columns(c, std::move(h), config_.smear_channels);
    Var gate = linear(net(c), std::move(first), smear_gate_);  // [N, 1]
    return gated_sum(net(c), std::move(all), std::move(previous), std::move(gate), smear_lambda_);
  }

  Var block(Ctx& c, int l, Var in, const Batch& batch, const Taps& taps) override {
    const Layer& w = layers_[size_t(l)];
    const AttentionShape shape = attention_shape(l);
    in = with_skip(c, std::move(in), l, w.skip_lambda, taps);
    if (taps.embedding) in = scaled_sum(net(c), std::move(in), w.resid_lambda, taps.embedding, w.x0_lambda);
    auto [h, x] = fork_input(c, std::move(in), w.norm1, w.qkv.w ? &w.qkv : nullptr);          // [N, C]
    Var value_gate = read_gate(c, x, w.value_gate, config_.value_gate_channels);              // [N, K]
    Var attention_gate = read_gate(c, x, w.attention_gate, config_.attention_gate_channels);  // [N, H]
    if (w.latent.kv_b.w) {
      x = latent_heads(net(c), std::move(x), w.latent, batch, rope_table(), latent_shape());
    } else if (config_.qk_norm) {
      x = linear(net(c), std::move(x), w.qkv);  // [N, (H + 2K) D]
      x = qk_norm(net(c), std::move(x), w.q_norm, w.k_norm, shape,
                  norms_all_heads(config_.model_type) ? HeadsOfNorm::all_as_one : HeadsOfNorm::each);
      x = rope(net(c), std::move(x), batch, rope_table(), shape);
    } else {
      x = rotated_linear(net(c), std::move(x), w.qkv, batch, rope_table(), shape);
    }
    x = with_values(c, std::move(x), l, std::move(value_gate), taps);
    const Tensor angles = w.latent.kv_b.w ? Tensor{} : rope_table();
    x = attention(net(c), std::move(x), batch, angles, shape, l, w.out, w.sinks);  // [N, H D]
    if (w.latent.kv_b.w) x = value_heads(net(c), std::move(x), latent_shape());
    if (attention_gate) x = gated_sum(net(c), {}, std::move(x), std::move(attention_gate));
    Var after = add_branch(net(c), l, std::move(h), w.out.w, [&, &x = x](Var residual) {
      return add_output(c, std::move(residual), w.output_norm1,
                        [&](Var r) { return linear(net(c), std::move(x), w.out, std::move(r)); });
    });
    if (w.experts.router) {
      auto [h2, y] = fork_norm(net(c), std::move(after), w.norm2);
      if (!w.mlp.up.w) return moe(net(c), std::move(y), w.experts, l, std::move(h2));  // [N, C]
      auto [of_shared, of_routed] = fork(c, std::move(y));
      return moe(net(c), std::move(of_routed), w.experts, l, std::move(h2), [&, &y = of_shared](Var residual) {
        return add_shared_experts(c, std::move(residual), std::move(y), w);
      });
    }
    auto [h2, y] = fork_input(c, std::move(after), w.norm2, &w.mlp.up);
    return add_branch(net(c), l, std::move(h2), w.mlp.down.w, [&, &y = y](Var residual) {
      return add_output(c, std::move(residual), w.output_norm2,
                        [&](Var r) { return mlp(net(c), std::move(y), w.mlp, std::move(r)); });  // [N, C]
    });
  }

  Var final_norm(Ctx& c, Var h, const Taps& taps) override {
    h = with_skip(c, std::move(h), config_.num_hidden_layers, skip_f_, taps);
    return finish(c, fork_norm(net(c), std::move(h), norm_f_));
  }

 private:
  struct Layer {
    Param skip_lambda, resid_lambda, x0_lambda;
    Norm norm1, output_norm1;  // of attention's input and output
    Linear qkv;
    LatentAttention latent;  // instead of qkv
    Param value_lambda, value_embedding_lambda, value_residual_lambda;
    Linear value_gate, attention_gate;
    Param sinks;
    Norm q_norm, k_norm;
    Linear out;
    Norm norm2, output_norm2;  // of the feed-forward layer's input and output
    Mlp mlp;                   // the dense layer, or all shared experts as one layer
    Linear shared_gate;        // [1, C]: gate of the shared experts' output; optional
    Moe experts;
  };

  bool norms_inputs() const { return config_.sublayer_norm != SublayerNorm::after; }
  bool norms_outputs() const { return config_.sublayer_norm != SublayerNorm::before; }

  LatentShape latent_shape() const {
    const ModelConfig& m = config_;
    return {.heads = attention_shape(0).heads,
            .nope = m.qk_nope_head_dim,
            .rope = m.qk_rope_head_dim,
            .value = m.v_head_dim,
            .interleaved = m.rope_interleave};
  }

  // Returns the residual stream, and the input of a sublayer whose only first linear layer is `reader`; null: it has
  // several.
  std::pair<Var, Var> fork_input(Ctx& c, Var h, const Norm& input, const Linear* reader) {
    return norms_inputs() ? fork_norm(net(c), std::move(h), input, reader) : fork(c, std::move(h));
  }
  // Adds a sublayer's output, or its norm, to the residual, which may be absent. sublayer(r) itself adds r.
  template <class Sublayer>
  Var add_output(Ctx& c, Var residual, const Norm& output, const Sublayer& sublayer) {
    if (!norms_outputs()) return sublayer(std::move(residual));
    Var y = finish(c, fork_norm(net(c), sublayer(Var{}), output));
    return residual ? add(c, std::move(residual), std::move(y)) : std::move(y);
  }

  // residual + sigmoid(gate) mlp(y), or without a gate residual + mlp(y).
  Var add_shared_experts(Ctx& c, Var residual, Var y, const Layer& w) {
    if (!w.shared_gate.w) return mlp(net(c), std::move(y), w.mlp, std::move(residual));
    auto [of_experts, of_gate] = fork(c, std::move(y));
    Var gate = linear(net(c), std::move(of_gate), w.shared_gate);  // [N, 1]
    Var out = mlp(net(c), std::move(of_experts), w.mlp, {});       // [N, C]
    return gated_sum(net(c), std::move(residual), std::move(out), std::move(gate));
  }

  // Adds the block output named by skip_from to the stream, before a block or at the end.
  Var with_skip(Ctx& c, Var h, int64_t at, Param lambda, const Taps& taps) {
    if (!lambda) return h;
    return scaled_sum(net(c), std::move(h), {}, taps.blocks[size_t(config_.skip_from[size_t(at)])], lambda);
  }
  Param skip_lambda(const std::string& name, int unit, int64_t at) {
    const bool skips = !config_.skip_from.empty() && config_.skip_from[size_t(at)] >= 0;
    return skips ? scalar(name, unit, config_.skip_lambdas[size_t(at)]) : Param{};
  }

  // Returns the output of the linear layer `gate` on the first channels of x, which remains readable; empty if there is
  // no gate.
  Var read_gate(Ctx& c, Var& x, const Linear& gate, int64_t channels) {
    if (!gate.w) return {};
    auto [all, first] = fork_columns(c, std::move(x), channels);
    x = std::move(all);
    return linear(net(c), std::move(first), gate);
  }

  // Adds the terms of value_embeddings and value_residual_lambdas to the v columns of qkv.
  Var with_values(Ctx& c, Var qkv, int l, Var gate, const Taps& taps) {
    const Layer& w = layers_[size_t(l)];
    const AttentionShape shape = attention_shape(l);
    const bool first = adds_first_values(config_, l);
    if (taps.first_values && l == 0) qkv = set_values(c, std::move(qkv), shape, taps.first_values);
    if (first)
      qkv = add_to_values(net(c), std::move(qkv), shape,
                          {.other = taps.first_values, .own = w.value_lambda, .factor = w.value_residual_lambda});
    if (!has_value_embedding(config_, l)) return qkv;
    return add_to_values(net(c), std::move(qkv), shape,
                         {.other = taps.value_rows[size_t(config_.value_embeddings[size_t(l)])],
                          .own = first ? Param{} : w.value_lambda,
                          .factor = w.value_embedding_lambda,
                          .gate = std::move(gate),
                          .scale = w.value_gate.w ? float(config_.value_gate_scale) : 1.0f});
  }

  Layer declare_layer(int l) {
    const ModelConfig& m = config_;
    const int64_t c = m.hidden_size;
    const std::string p = cat("model.layers.", l, ".");
    const int u = l + 1;
    Layer w{};
    w.skip_lambda = skip_lambda(p + "skip_lambda", u, l);
    if (!m.x0_lambdas.empty()) w.x0_lambda = scalar(p + "x0_lambda", u, m.x0_lambdas[size_t(l)]);
    if (!m.resid_lambdas.empty()) w.resid_lambda = scalar(p + "resid_lambda", u, m.resid_lambdas[size_t(l)]);
    if (norms_inputs()) w.norm1 = norm(p + "input_layernorm", u);
    if (has_latent_attention(m.model_type))
      declare_latent_attention(w, p + "self_attn.", u);
    else
      declare_attention(w, p + "self_attn.", u, l);
    if (norms_outputs()) {  // the names of OLMo 2 and Gemma 2
      w.output_norm1 = norm(p + "post_attention_layernorm", u);
      if (norms_inputs()) w.norm2 = norm(p + "pre_feedforward_layernorm", u);
      w.output_norm2 = norm(p + "post_feedforward_layernorm", u);
    } else {
      w.norm2 = norm(p + "post_attention_layernorm", u);
    }
    if (!has_experts(m, l)) {
      w.mlp = declare_mlp(p + "mlp.", u, c, m.intermediate_size);
      return w;
    }
    w.experts = declare_experts(p, u);
    if (router_bias_) w.experts.bias = router_bias_, w.experts.row = l - m.first_k_dense_replace;
    if (shared_width(m) == 0) return w;
    const bool gated = has_shared_expert_gate(m.model_type);
    w.mlp = declare_mlp(p + (gated ? "mlp.shared_expert." : "mlp.shared_experts."), u, c, shared_width(m));
    if (!gated) return w;
    const std::string g = p + "mlp.shared_expert_gate";
    w.shared_gate.w = matrix(g, u, {{g + ".weight", {1, c}}}, init_std(), {}, false, PartialGradient::of_rows);
    params_.belongs_to_router(w.shared_gate.w);  // read in the precision of routers
    return w;
  }

  void declare_attention(Layer& w, const std::string& a, int u, int l) {
    const ModelConfig& m = config_;
    const int64_t c = m.hidden_size, d = m.head_dim, q = m.num_attention_heads * d, kv = m.num_key_value_heads * d;
    const Cut heads{.axis = 0, .parts = {q, kv, kv}, .whole = d, .repeated = 1};
    w.qkv.w = matrix(a + "qkv.w", u,
                     {{a + "q_proj.weight", {q, c}}, {a + "k_proj.weight", {kv, c}}, {a + "v_proj.weight", {kv, c}}},
                     init_std(), heads);
    if (m.attention_bias)
      w.qkv.b =
          vector(a + "qkv.b", u, {{a + "q_proj.bias", q}, {a + "k_proj.bias", kv}, {a + "v_proj.bias", kv}}, 0, heads);
    params_.feeds_attention(w.qkv.w, l);
    if (w.qkv.b) params_.feeds_attention(w.qkv.b, l);
    if (m.qk_norm) {
      w.q_norm = head_norm(a + "q_norm", u);
      w.k_norm = head_norm(a + "k_norm", u);
    }
    w.out.w = matrix(a + "o_proj", u, {{a + "o_proj.weight", {c, q}}}, output_init_std(),
                     {.axis = 1, .parts = {q}, .whole = d});
    if (m.attention_sinks)
      w.sinks = vector(a + "sinks", u, {{a + "sinks", m.num_attention_heads}}, 0,
                       {.axis = 0, .parts = {m.num_attention_heads}});
    declare_values(w, a, u, l);
    if (m.attention_gate_channels > 0)
      w.attention_gate.w = gate(a + "gate", u, m.num_attention_heads, m.attention_gate_channels);
    if (has_output_bias(m)) w.out.b = vector(a + "o_proj.b", u, {{a + "o_proj.bias", c}}, 0);
  }

  // Latent vectors and their norms are whole on tensor-parallel ranks, which have parts of the heads.
  void declare_latent_attention(Layer& w, const std::string& a, int u) {
    const ModelConfig& m = config_;
    const int64_t c = m.hidden_size, heads = m.num_attention_heads, d = m.head_dim, rank = m.q_lora_rank;
    const int64_t latent = m.kv_lora_rank, key_value = m.qk_nope_head_dim + m.v_head_dim;
    const auto whole = [&](const char* name, int64_t out) {
      return matrix(a + name, u, {{cat(a, name, ".weight"), {out, c}}}, init_std(), {}, false,
                    PartialGradient::of_rows);
    };
    const auto of_heads = [&](const char* name, int64_t each, int64_t in) {
      const int64_t out = heads * each;
      return matrix(a + name, u, {{cat(a, name, ".weight"), {out, in}}}, init_std(),
                    {.axis = 0, .parts = {out}, .whole = each});
    };
    const auto norm_of = [&](const char* name, int64_t size) {
      Norm norm = gained(a + name, u, size, true, 1, PartialGradient::of_rows);
      norm.eps = 1e-6f;  // transformers' DeepseekV3RMSNorm, whatever rms_norm_eps is
      return norm;
    };
    if (rank > 0) {
      w.latent.q_a.w = whole("q_a_proj", rank);
      w.latent.q_norm = norm_of("q_a_layernorm", rank);
    }
    w.latent.q.w = rank > 0 ? of_heads("q_b_proj", d, rank) : of_heads("q_proj", d, c);
    w.latent.kv_a.w = whole("kv_a_proj_with_mqa", latent + m.qk_rope_head_dim);
    w.latent.kv_norm = norm_of("kv_a_layernorm", latent);
    w.latent.kv_b.w = of_heads("kv_b_proj", key_value, latent);
    const int64_t values = heads * m.v_head_dim;
    w.out.w = matrix(a + "o_proj", u, {{a + "o_proj.weight", {c, values}}}, output_init_std(),
                     {.axis = 1, .parts = {values}, .whole = m.v_head_dim});
  }

  // Declares a linear layer from the first channels to the heads, which are sliced over tensor-parallel ranks.
  Param gate(const std::string& name, int unit, int64_t heads, int64_t channels) {
    return matrix(name, unit, {{name + ".weight", {heads, channels}}}, init_std(), {.axis = 0, .parts = {heads}});
  }

  void declare_values(Layer& w, const std::string& a, int u, int l) {
    const ModelConfig& m = config_;
    const bool row = has_value_embedding(m, l), first = adds_first_values(m, l);
    const auto initial = [&](const std::vector<double>& lambdas) { return lambdas[size_t(l)]; };
    if ((row || first) && !m.value_lambdas.empty())
      w.value_lambda = head_scalar(a + "value_lambda", u, initial(m.value_lambdas));
    if (row && !m.value_embedding_lambdas.empty())
      w.value_embedding_lambda = head_scalar(a + "value_embedding_lambda", u, initial(m.value_embedding_lambdas));
    if (first) w.value_residual_lambda = head_scalar(a + "value_residual_lambda", u, initial(m.value_residual_lambdas));
    if (row && m.value_gate_channels > 0)
      w.value_gate.w = gate(a + "value_gate", u, m.num_key_value_heads, m.value_gate_channels);
  }

  Param declare_value_table(int64_t t) {
    const ModelConfig& m = config_;
    const int64_t keys = m.num_key_value_heads * m.head_dim;
    const std::string name = cat("model.value_embeddings.", t);
    return table(name, 0, {name + ".weight", {m.vocab_size, keys}}, m.vocab_size,
                 {.axis = 1, .parts = {keys}, .whole = m.head_dim});
  }

  void declare_smear() {
    const int64_t channels = config_.smear_channels;
    smear_gate_.w = matrix("model.smear_gate", 0, {{"model.smear_gate.weight", {1, channels}}}, init_std(), {}, false,
                           PartialGradient::of_rows);
    smear_lambda_ = scalar("model.smear_lambda", 0, 0);
  }

  Mlp declare_mlp(const std::string& p, int u, int64_t c, int64_t f) {
    const ModelConfig& m = config_;
    Mlp w{.f = m.hidden_act, .gated = m.gated_mlp, .up = {}, .down = {}};
    std::vector<std::pair<std::string, Shape>> ups;
    std::vector<std::pair<std::string, int64_t>> biases;
    Cut outputs{.axis = 0};
    for (const char* name : {"gate_proj", "up_proj"}) {
      if (name == std::string_view("gate_proj") && !m.gated_mlp) continue;
      ups.push_back({cat(p, name, ".weight"), {f, c}});
      biases.push_back({cat(p, name, ".bias"), f});
      outputs.parts.push_back(f);
    }
    const std::string up = m.gated_mlp ? "gate_up" : "up";
    w.up.w = matrix(p + up, u, ups, init_std(), outputs);
    w.down.w = matrix(p + "down", u, {{p + "down_proj.weight", {c, f}}}, output_init_std(), {.axis = 1, .parts = {f}});
    if (!m.mlp_bias) return w;
    w.up.b = vector(p + up + ".b", u, biases, 0, outputs);
    w.down.b = vector(p + "down.b", u, {{p + "down_proj.bias", c}}, 0);
    return w;
  }

  // The router bias is in a separate unit, after the head's.
  void declare_router_bias() {
    const ModelConfig& m = config_;
    ParamSpec spec{.name = "model.e_score_correction_bias",
                   .shape = {m.num_hidden_layers - m.first_k_dense_replace, m.num_experts},
                   .role = Role::vector,
                   .unit = head_unit() + 1};
    for (int64_t l = m.first_k_dense_replace; l < m.num_hidden_layers; ++l)
      spec.slices.push_back({cat("model.layers.", l, ".mlp.gate.e_score_correction_bias"),
                             {m.num_experts},
                             (l - m.first_k_dense_replace) * m.num_experts});
    spec.trainable = false;
    spec.buffer = true;
    router_bias_ = params_.declare(std::move(spec));
  }

  Moe declare_experts(const std::string& block, int unit) {
    const ModelConfig& m = config_;
    const bool mixtral = m.model_type == ModelType::mixtral, biased = has_biased_experts(m.model_type);
    const int64_t c = m.hidden_size, f = m.moe_intermediate_size, e = m.num_experts;
    const std::string p = block + (mixtral ? "block_sparse_moe." : "mlp.");
    std::vector<std::pair<std::string, Shape>> gates_and_ups, downs;
    for (int64_t i = 0; i < e; ++i) {
      const std::string expert = cat(p, "experts.", i, ".");
      gates_and_ups.push_back({expert + (mixtral ? "w1.weight" : "gate_proj.weight"), {f, c}});
      gates_and_ups.push_back({expert + (mixtral ? "w3.weight" : "up_proj.weight"), {f, c}});
      downs.push_back({expert + (mixtral ? "w2.weight" : "down_proj.weight"), {c, f}});
    }
    const auto whole = [&](const std::string& name, const std::vector<std::pair<std::string, Shape>>& parts,
                           float std) {
      return matrix(p + name, unit, parts, std, {}, false, PartialGradient::of_rows);
    };
    const std::string router = p + (biased ? "router" : "gate");
    Moe layer{.router = whole("gate", {{router + ".weight", {e, c}}}, init_std()),
              .bias = {},
              .row = 0,
              .gate_up = whole("experts.gate_up", gates_and_ups, init_std()),
              .down = whole("experts.down", downs, output_init_std()),
              .experts = e,
              .chosen = m.num_experts_per_tok,
              .rule = {.score = m.scoring_func,
                       .normalize = m.norm_topk_prob,
                       .groups = m.n_group,
                       .chosen_groups = m.topk_group,
                       .by_largest = m.model_type == ModelType::deepseek_v2,
                       .factor = float(m.routed_scaling_factor)},
              .balance = float(m.router_aux_loss_coef),
              .z = float(m.router_z_loss_coef)};
    params_.belongs_to_router(layer.router);
    params_.belongs_to_experts(layer.gate_up, layer.experts, layer.chosen);
    params_.belongs_to_experts(layer.down, layer.experts, layer.chosen);
    if (biased) declare_expert_biases(layer, p, unit);
    return layer;
  }

  void declare_expert_biases(Moe& layer, const std::string& p, int unit) {
    const int64_t c = config_.hidden_size, f = config_.moe_intermediate_size;
    std::vector<std::pair<std::string, int64_t>> gates_and_ups, downs;
    for (int64_t i = 0; i < layer.experts; ++i) {
      const std::string expert = cat(p, "experts.", i, ".");
      gates_and_ups.push_back({expert + "gate_proj.bias", f});
      gates_and_ups.push_back({expert + "up_proj.bias", f});
      downs.push_back({expert + "down_proj.bias", c});
    }
    constexpr PartialGradient kRows = PartialGradient::of_rows;
    layer.router_b = vector(p + "router.b", unit, {{p + "router.bias", layer.experts}}, 0, {}, kRows);
    layer.gate_up_b = vector(p + "experts.gate_up.b", unit, gates_and_ups, 0, {}, kRows);
    layer.down_b = vector(p + "experts.down.b", unit, downs, 0, {}, kRows);
    params_.belongs_to_experts(layer.gate_up_b, layer.experts, layer.chosen);
    params_.belongs_to_experts(layer.down_b, layer.experts, layer.chosen);
    layer.limit = float(config_.swiglu_limit);
  }

  Norm norm(const std::string& name, int unit, float gain = 1) {
    return gained(name, unit, config_.hidden_size, config_.norm_elementwise_affine, gain, PartialGradient::of_rows);
  }
  // OLMoE normalizes all heads of q together, and all heads of k together; it has as many K as Q heads. Its gain is
  // sliced with them.
  Norm head_norm(const std::string& name, int unit) {
    const int64_t d = config_.head_dim, q = config_.num_attention_heads * d;
    const bool all = norms_all_heads(config_.model_type);
    return gained(name, unit, all ? q : d, config_.qk_norm_elementwise_affine, 1, PartialGradient::of_heads,
                  all ? Cut{.axis = 0, .parts = {q}, .whole = d} : Cut{});
  }
  Norm gained(const std::string& name, int unit, int64_t size, bool has_gain, float gain, PartialGradient partial,
              const Cut& cut = {}) {
    Norm norm{NormKind::rms, {}, {}, float(config_.norm_eps), &ones_};
    if (has_gain) norm.w = vector(name, unit, {{name + ".weight", size}}, gain, cut, partial);
    return norm;
  }
  Param scalar(const std::string& name, int unit, double value) {
    return vector(name, unit, {{name, 1}}, float(value), {}, PartialGradient::of_rows);
  }
  // Declares a scalar that each tensor-parallel rank applies to its own heads.
  Param head_scalar(const std::string& name, int unit, double value) {
    return vector(name, unit, {{name, 1}}, float(value), {}, PartialGradient::of_heads);
  }

  Param wte_, skip_f_, smear_lambda_;
  Linear smear_gate_;
  std::vector<Param> value_tables_;
  std::vector<Layer> layers_;
  Norm norm_0_{}, norm_f_{};
};

}  // namespace

std::unique_ptr<Model> make_llama(const ModelConfig& config) { return std::make_unique<Llama>(config); }

}  // namespace athanor
