// Vision transformer that classifies images [Dosovitskiy et al. 2020]: patches and a class token with learned
// positions, GPT-2's block with the exact GELU and without a causal mask, and a linear classifier of the class token.
// Names in files are those of transformers' ViTForImageClassification.
#include "base/int.h"
#include "model/families.h"
#include "model/gpt2_block.h"

namespace athanor {
namespace {

class Vit final : public Model {
 public:
  explicit Vit(const ModelConfig& config) : Model(config) {}

  void declare() override {
    const ModelConfig& m = config_;
    const int64_t c = m.hidden_size, d = m.head_dim, f = m.intermediate_size, p = m.patch_size, ch = m.num_channels;
    const std::string e = "vit.embeddings.";
    const HfSlice kernel{e + "patch_embeddings.projection.weight", {c, ch, p, p}};
    patches_ = {params_.declare({.name = "embeddings.patches",
                                 .shape = {c, ch * p * p},
                                 .role = Role::embedding,
                                 .init_std = std_of(kernel.name, init_std()),
                                 .slices = {kernel}}),
                {}};
    kinds_ = params_.declare(  // both start at 0
        {.name = "embeddings.bias_and_class_token",
         .shape = {2, c},
         .role = Role::vector,
         .slices = {{e + "patch_embeddings.projection.bias", {c}, 0}, {e + "cls_token", {1, 1, c}, c}}});
    positions_ = table("embeddings.positions", 0, {e + "position_embeddings", {1, m.max_position_embeddings, c}},
                       m.max_position_embeddings, {});
    for (int l = 0; l < int(m.num_hidden_layers); ++l) layers_.push_back(declare_layer(l, c, d, f));
    norm_f_ = layer_norm("vit.layernorm", head_unit());
    head_ = table("classifier", head_unit(), {"classifier.weight", {m.vocab_size, c}}, rows_of_classifier(), {});
    head_bias_ = params_.declare({.name = "classifier.b",
                                  .shape = {rows_of_classifier()},
                                  .role = Role::vector,
                                  .unit = head_unit(),
                                  .slices = {{"classifier.bias", {m.vocab_size}}}});
  }

  Var embed(Ctx& c, const Batch& batch, Taps&) override {
    return patch_embedding(net(c), batch, image_patches(), patches_, kinds_, positions_);
  }

  Var block(Ctx& c, int l, Var in, const Batch& batch, const Taps&) override {
    return run(net(c), layers_[size_t(l)], l, std::move(in), batch, attention_shape(l));
  }

  Var final_norm(Ctx& c, Var h, const Taps&) override { return finish(c, fork_norm(net(c), std::move(h), norm_f_)); }

 private:
  // y = (pixel / 255 - mean) / std
  ImagePatches image_patches() const {
    const ModelConfig& m = config_;
    ImagePatches out{
        .shape = {.channels = m.num_channels, .height = m.image_size, .width = m.image_size, .patch = m.patch_size}};
    for (size_t c = 0; c < size_t(m.num_channels); ++c) {
      const double mean = m.image_mean.empty() ? 0.5 : m.image_mean[c],
                   std = m.image_std.empty() ? 0.5 : m.image_std[c];
      out.scale[c] = float(1 / (255 * std));
      out.shift[c] = float(-mean / std);
    }
    return out;
  }
  int64_t rows_of_classifier() const { return round_up(config_.vocab_size, kVocabMultiple); }

  Gpt2Block declare_layer(int l, int64_t c, int64_t d, int64_t f) {
    const std::string p = cat("vit.encoder.layer.", l, "."), a = p + "attention.attention.";
    const int u = l + 1;
    const Cut heads{.axis = 0, .parts = {c, c, c}, .whole = d}, neurons{.axis = 0, .parts = {f}};
    Gpt2Block layer{
        .norm1 = layer_norm(p + "layernorm_before", u),
        .qkv = {matrix(p + "qkv", u,
                       {{a + "query.weight", {c, c}}, {a + "key.weight", {c, c}}, {a + "value.weight", {c, c}}},
                       init_std(), heads),
                vector(p + "qkv.b", u, {{a + "query.bias", c}, {a + "key.bias", c}, {a + "value.bias", c}}, 0, heads)},
        .out = linear_by_inputs(p + "attention.output.dense", u, c, c, d),
        .norm2 = layer_norm(p + "layernorm_after", u),
        .mlp = {.f = Activation::gelu_erf,
                .gated = false,
                .up = {matrix(p + "up", u, {{p + "intermediate.dense.weight", {f, c}}}, init_std(), neurons),
                       vector(p + "up.b", u, {{p + "intermediate.dense.bias", f}}, 0, neurons)},
                .down = linear_by_inputs(p + "output.dense", u, f, c, 1)}};
    params_.feeds_attention(layer.qkv.w, l);
    params_.feeds_attention(layer.qkv.b, l);
    return layer;
  }

  // A linear layer whose inputs tensor-parallel ranks share, `whole` of them staying together; it has the whole bias,
  // which is added to the sum.
  Linear linear_by_inputs(const std::string& name, int unit, int64_t in, int64_t out, int64_t whole) {
    return {matrix(name, unit, {{name + ".weight", {out, in}}}, init_std(), {.axis = 1, .parts = {in}, .whole = whole}),
            vector(name + ".b", unit, {{name + ".bias", out}}, 0)};
  }

  Linear patches_;
  Param kinds_, positions_;
  std::vector<Gpt2Block> layers_;
  Norm norm_f_{};
};

}  // namespace

std::unique_ptr<Model> make_vit(const ModelConfig& config) { return std::make_unique<Vit>(config); }

}  // namespace athanor
