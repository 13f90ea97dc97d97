// GPT-2 and GPT-3 [Radford et al. 2019; Brown et al. 2020]: LayerNorm, GELU, learned positions, biases, tied head.
#include "model/families.h"
#include "model/gpt2_block.h"

namespace athanor {
namespace {

class Gpt2 final : public Model {
 public:
  explicit Gpt2(const ModelConfig& config) : Model(config) {}

  void declare() override {
    const ModelConfig& m = config_;
    const int64_t c = m.hidden_size, f = m.intermediate_size, d = m.head_dim;
    wte_ = vocab_table("wte", 0, "transformer.wte.weight");
    wpe_ = position_table("wpe", 0, "transformer.wpe.weight");
    head_ = m.tie_word_embeddings ? wte_ : vocab_table("head", head_unit(), "lm_head.weight");
    for (int l = 0; l < int(m.num_hidden_layers); ++l) {
      const std::string p = cat("transformer.h.", l, ".");
      const int u = l + 1;
      layers_.push_back(
          {.norm1 = layer_norm(p + "ln_1", u),
           .qkv = conv1d(p + "attn.c_attn", u, c, 3 * c, init_std(), {.axis = 1, .parts = {c, c, c}, .whole = d}),
           .out = conv1d(p + "attn.c_proj", u, c, c, output_init_std(), {.axis = 0, .parts = {c}, .whole = d}),
           .norm2 = layer_norm(p + "ln_2", u),
           .mlp = {.f = Activation::gelu,
                   .gated = false,
                   .up = conv1d(p + "mlp.c_fc", u, c, f, init_std(), {.axis = 1, .parts = {f}}),
                   .down = conv1d(p + "mlp.c_proj", u, f, c, output_init_std(), {.axis = 0, .parts = {f}})}});
      params_.feeds_attention(layers_.back().qkv.w, l);
      params_.feeds_attention(layers_.back().qkv.b, l);
    }
    norm_f_ = layer_norm("transformer.ln_f", head_unit(), final_gain());
  }

  Var embed(Ctx& c, const Batch& batch, Taps&) override { return embedding(net(c), batch, wte_, wpe_); }

  Var block(Ctx& c, int l, Var in, const Batch& batch, const Taps&) override {
    return run(net(c), layers_[size_t(l)], l, std::move(in), batch, attention_shape(l));
  }

  Var final_norm(Ctx& c, Var h, const Taps&) override { return finish(c, fork_norm(net(c), std::move(h), norm_f_)); }

 private:
  // Files store [in, out] ("Conv1D"), and so does memory, so that nothing is ever transposed. A column-parallel layer
  // slices its bias, too; a row-parallel layer has a whole bias, which is added to the sum.
  Linear conv1d(const std::string& name, int unit, int64_t in, int64_t out, float std_dev, const Cut& cut) {
    const Cut of_bias = cut.axis == 1 ? Cut{.axis = 0, .parts = cut.parts, .whole = cut.whole} : Cut{};
    return {matrix(name + ".w", unit, {{name + ".weight", {in, out}}}, std_dev, cut, true),
            vector(name + ".b", unit, {{name + ".bias", out}}, 0, of_bias), WeightOrder::in_out};
  }

  Param wte_, wpe_;
  std::vector<Gpt2Block> layers_;
  Norm norm_f_{};
};

}  // namespace

std::unique_ptr<Model> make_gpt2(const ModelConfig& config) { return std::make_unique<Gpt2>(config); }

}  // namespace athanor
