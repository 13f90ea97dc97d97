// check() of every op: a wrong dtype or shape of any tensor is an error that names the op and a tensor.
#include <gtest/gtest.h>

#include <set>

#include "ops/decorate.h"
#include "reference/reference_ops.h"
#include "tests/ops/attention_backward.h"
#include "tests/ops/cases.h"
#include "tests/ops/host_device.h"
#include "tests/sanitized.h"

namespace athanor {
namespace {

// Instead of running an op, changes its tensors one at a time and notes what check() lets pass.
class Mutator final : public Decorated<Mutator> {
 public:
  const Ops& inner() const { return reference_; }

  template <class Op>
  void on(const Op& op, void*) {
    Op probe = op;
    for (const Field& f : probe.fields()) {
      if (!*f.t) continue;
      const Tensor whole = *f.t;
      const std::string tensor = cat(Op::kName, ".", f.name);
      f.t->dtype = f.t->dtype == DType::i64 ? DType::f64 : DType::i64;
      expect_refused(probe, cat(tensor, " dtype"));
      *f.t = whole;
      for (int d = 0; d < whole.shape.rank; ++d) {
        ++f.t->shape.dim[size_t(d)];
        expect_refused(probe, cat(tensor, " dimension ", d));
        *f.t = whole;
      }
      f.t->shape = {1, whole.numel(), 1};
      f.t->row_stride = 0;
      expect_refused(probe, cat(tensor, " rank"));
      *f.t = whole;
      if (whole.shape.rank == 2) f.t->row_stride = whole.stride() + 1;
      if (whole.shape.rank == 2) expect_refused(probe, cat(tensor, " stride"));
      *f.t = whole;
    }
  }
  std::set<std::string> passed, unnamed;

 private:
  template <class Op>
  void expect_refused(Op& op, const std::string& change) {
    try {
      op.check();
      passed.insert(change);
    } catch (const std::exception& e) {
      const std::string message = e.what();
      bool named = false;
      for (const Field& f : op.fields()) named = named || message.find(cat(Op::kName, ".", f.name)) != message.npos;
      if (!named) unnamed.insert(cat(change, ": ", message));
    }
  }
  ReferenceOps reference_;
};

// Changes of a tensor that an op accepts: sizes of tables, padding, shapes of flat tensors, strided rows.
const std::set<std::string> kAllowed = {"add_expert_bias.weights rank",
                                        "add_expert_bias.x dimension 0",
                                        "add_expert_bias_bwd.dx dimension 0",
                                        "attention_bwd.cos_sin dimension 0",
                                        "attention_bwd.dk stride",
                                        "attention_bwd.dq stride",
                                        "attention_bwd.dv stride",
                                        "attention_bwd.k stride",
                                        "attention_bwd.q stride",
                                        "attention_bwd.spans dimension 0",
                                        "attention_bwd.v stride",
                                        "attention_fwd.k stride",
                                        "attention_fwd.q stride",
                                        "attention_fwd.spans dimension 0",
                                        "attention_fwd.v stride",
                                        "attention_sinks.y dimension 1",
                                        "average_trust_ratio.sums dimension 1",
                                        "cached_distilled_cross_entropy.logits dimension 1",
                                        "clamped_glu_fwd.weights rank",
                                        "clip_factors.sums dimension 0",
                                        "column_sum.x dimension 0",
                                        "combine.a stride",
                                        "combine.b stride",
                                        "combine.y stride",
                                        "count_experts.counts dimension 0",
                                        "count_experts.experts dimension 0",
                                        "count_experts.experts dimension 1",
                                        "cross_entropy.logits dimension 1",
                                        "dequantize_nf4.y dimension 0",
                                        "distill_sums.logits dimension 1",
                                        "distill_sums.teacher dimension 1",
                                        "distilled_cross_entropy.logits dimension 1",
                                        "distilled_cross_entropy.teacher dimension 1",
                                        "embedding_bwd.dwpe dimension 0",
                                        "embedding_bwd.dwte dimension 0",
                                        "embedding_fwd.wpe dimension 0",
                                        "embedding_fwd.wte dimension 0",
                                        "fill.x dimension 0",
                                        "fill.x dimension 1",
                                        "fill.x dtype",
                                        "fill.x rank",
                                        "gated_sum.x stride",
                                        "gated_sum.y stride",
                                        "gated_sum.z stride",
                                        "gated_sum_bwd.dx stride",
                                        "gated_sum_bwd.dy stride",
                                        "gated_sum_bwd.dz stride",
                                        "gated_sum_bwd.x stride",
                                        "gated_sum_bwd.z stride",
                                        "gather_rows.x dimension 0",
                                        "gather_rows.x stride",
                                        "gather_rows.y stride",
                                        "gemm.a stride",
                                        "gemm.aux dimension 0",
                                        "gemm.b stride",
                                        "gemm.d stride",
                                        "int8_gemm.a stride",
                                        "int8_gemm.d stride",
                                        "latent_heads.cos_sin dimension 0",
                                        "latent_heads_bwd.cos_sin dimension 0",
                                        "logit_sums.logits dimension 1",
                                        "normalize_matrix.x stride",
                                        "normalize_neurons.x dimension 0",
                                        "normalize_neurons.x dimension 1",
                                        "output_squares.sums dimension 0",
                                        "output_squares.sums rank",
                                        "output_squares.x dimension 0",
                                        "output_squares.x rank",
                                        "pack_groups.x dimension 0",
                                        "pick_logits.logits dimension 1",
                                        "qk_clip.master dimension 0",
                                        "qk_clip.master rank",
                                        "random_normal.x dimension 0",
                                        "random_normal.x rank",
                                        "reduce_sum.x dimension 0",
                                        "reduce_sum.x rank",
                                        "rope.cos_sin dimension 0",
                                        "rope.x stride",
                                        "route_fwd.logits dimension 1",
                                        "row_max.x dimension 1",
                                        "scale_by_magnitude.x stride",
                                        "scale_by_magnitude.y stride",
                                        "scale_by_magnitude_bwd.dx stride",
                                        "scale_by_magnitude_bwd.dy stride",
                                        "scale_by_magnitude_bwd.x stride",
                                        "scale_by_trust_ratio.grad dimension 0",
                                        "scale_by_trust_ratio.grad rank",
                                        "scale_by_trust_ratio.sums dimension 1",
                                        "scale_outputs.factors dimension 0",
                                        "scale_outputs.factors rank",
                                        "scale_outputs.x dimension 0",
                                        "scale_outputs.x rank",
                                        "scaled_gemm.d stride",
                                        "scatter_rows.x stride",
                                        "scatter_rows.y dimension 0",
                                        "scatter_rows.y stride",
                                        "sort_by_expert.offsets dimension 0",
                                        "source_losses.sums dimension 1",
                                        "squared_norm.x dimension 0",
                                        "squared_norm.x rank",
                                        "step_control.scores dimension 0",
                                        "step_control.scores dimension 1",
                                        "sum_groups.y dimension 0",
                                        "sum_rows.rows dimension 1",
                                        "sum_rows.x dimension 0",
                                        "top_logits.logits dimension 1",
                                        "weighted_swiglu_fwd.weights rank"};

std::string joined(const std::set<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += cat("  ", line, "\n");
  return text;
}

TEST(Check, RefusesEveryInvalidTensorByName) {
  const auto mutator = std::make_shared<Mutator>();
  Examiner examine(
      [&](int) {
        return TestBackend{std::make_shared<HostDevice>(), mutator};
      },
      {.threads = {1}, .every = kSanitized ? 10 : 1, .gradients = false});
  for (const Family& family : kFamilies) family.run(examine);
  std::set<std::string> allowed = kAllowed;
  if (kSanitized) std::erase_if(allowed, [&](const std::string& a) { return !mutator->passed.contains(a); });
  EXPECT_EQ(joined(mutator->passed), joined(allowed)) << "with sanitizers every tenth case: not each freedom is seen";
  EXPECT_EQ(joined(mutator->unnamed), "");
}

template <class Op>
std::string refusal(const Op& op) {
  try {
    op.check();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

TEST(Check, ReportsActualAndExpectedValues) {
  const Tensor x = tensor(DType::bf16, {3, 5});
  EXPECT_NE(refusal(GeluFwd{.y = tensor(DType::bf16, {3, 4}), .x = x}).find("gelu_fwd.y is [3, 4], expected [3, 5]"),
            std::string::npos);
  EXPECT_NE(refusal(GeluFwd{.y = tensor(DType::f32, {3, 5}), .x = x}).find("gelu_fwd.y is f32, expected bf16"),
            std::string::npos);
  EXPECT_NE(refusal(GeluFwd{.y = x, .x = tensor(DType::i32, {3, 5})}).find("gelu_fwd.x is i32, expected a float"),
            std::string::npos);
  EXPECT_NE(refusal(Add{.y = tensor(DType::bf16, {3, 5}, 8), .a = x, .b = x}).find("rows 8 apart, expected no gaps"),
            std::string::npos);
}

TEST(Check, RefusesConflictingFields) {
  const Tensor m = tensor(DType::f32, {4, 4}), v = tensor(DType::f32, {4});
  Gemm gemm{.d = m, .a = m, .b = m, .bias = v};
  EXPECT_EQ(refusal(gemm), "");
  gemm.accumulate = true;
  EXPECT_NE(refusal(gemm).find("gemm: expected no bias when accumulating"), std::string::npos);
  gemm.bias = {};
  gemm.epilogue = Epilogue::sum_b;
  EXPECT_NE(refusal(gemm).find("gemm: expected aux exactly with an epilogue"), std::string::npos);
  gemm.aux = v;
  EXPECT_EQ(refusal(gemm), "");
  gemm.tb = true;
  EXPECT_NE(refusal(gemm).find("gemm: expected an operand stored with K as rows"), std::string::npos);
  gemm.epilogue = Epilogue::add;
  EXPECT_NE(refusal(gemm).find("gemm.aux is [4], expected [4, 4]"), std::string::npos);
  gemm.aux = m;
  EXPECT_NE(refusal(gemm).find("gemm: expected no accumulation with this epilogue"), std::string::npos);
  gemm.accumulate = false;
  EXPECT_EQ(refusal(gemm), "");
  gemm.recompute = true;
  EXPECT_NE(refusal(gemm).find("gemm: expected recompute only with epilogue gelu"), std::string::npos);
  gemm = {.d = m, .a = m, .b = m, .bias = v, .aux = m, .epilogue = Epilogue::gelu_gradient};
  EXPECT_NE(refusal(gemm).find("gemm: expected no bias with a gradient epilogue"), std::string::npos);
  gemm.epilogue = Epilogue::swiglu;
  EXPECT_NE(refusal(gemm).find("gemm.aux is [4, 4], expected [4, 2]"), std::string::npos);
  gemm.aux = tensor(DType::f32, {4, 2});
  EXPECT_EQ(refusal(gemm), "");
  gemm.d = gemm.b = tensor(DType::f32, {4, 3});
  gemm.bias = {};
  EXPECT_NE(refusal(gemm).find("gemm: expected as many gate columns as up columns"), std::string::npos);
  gemm.epilogue = Epilogue::swiglu_gradient;
  EXPECT_NE(refusal(gemm).find("gemm.aux is [4, 2], expected [4, 6]"), std::string::npos);
  gemm.aux = tensor(DType::f32, {4, 6});
  EXPECT_EQ(refusal(gemm), "");
  gemm.bias = tensor(DType::f32, {3});
  EXPECT_NE(refusal(gemm).find("gemm: expected no bias with a gradient epilogue"), std::string::npos);

  NormFwd norm{.kind = NormKind::rms, .y = m, .rstd = v, .h = m, .w = v, .eps = 0};
  EXPECT_EQ(refusal(norm), "");
  norm.b = norm.mean = v;
  EXPECT_NE(refusal(norm).find("norm_fwd: expected b and mean exactly for layer norm"), std::string::npos);

  Rope rope{.x = tensor(DType::f32, {4, 6}),
            .cos_sin = tensor(DType::f32, {9, 3}),
            .positions = tensor(DType::i32, {4}),
            .heads = 2,
            .head_dim = 3};
  EXPECT_NE(refusal(rope).find("rope: expected an even head_dim"), std::string::npos);

  CrossEntropy loss{.logits = m, .losses = v, .targets = tensor(DType::i32, {4}), .vocab = 5, .grad = false};
  EXPECT_NE(refusal(loss).find("cross_entropy: expected 0 < vocab <= columns"), std::string::npos);

  DistilledCrossEntropy distilled{.logits = m,
                                  .teacher = m,
                                  .losses = v,
                                  .divergences = v,
                                  .targets = tensor(DType::i32, {4}),
                                  .scale = tensor(DType::f32, {1}),
                                  .vocab = 4};
  EXPECT_EQ(refusal(distilled), "");
  distilled.temperature = 0;
  EXPECT_NE(refusal(distilled).find("distilled_cross_entropy: expected temperature > 0"), std::string::npos);
  EXPECT_NE(
      refusal(MaskedFill{.x = tensor(DType::f64, {4}), .mask = tensor(DType::u8, {4})}).find("masked_fill.x is f64"),
      std::string::npos);

  AttentionFwd attention{.y = m,
                         .lse = tensor(DType::f32, {4, 2}),
                         .q = m,
                         .k = m,
                         .v = m,
                         .spans = tensor(DType::i32, {1, kSpanWords}),
                         .shape = {.heads = 2, .kv_heads = 2, .head_dim = 2}};
  EXPECT_EQ(refusal(attention), "");
  attention.shape.kv_heads = 3;
  EXPECT_NE(refusal(attention).find("attention_fwd: expected heads to be a multiple of kv_heads"), std::string::npos);
  attention.shape.kv_heads = 2;
  attention.shape.sparse = {4, 4};
  EXPECT_NE(refusal(attention).find("attention_fwd: expected a window, or a sparse pattern"), std::string::npos);
  attention.shape.sparse = {4, 1}, attention.shape.window = 2;
  EXPECT_NE(refusal(attention).find("attention_fwd: expected a window, or a sparse pattern"), std::string::npos);
  attention.shape.sparse = {}, attention.shape.window = 0;

  AttentionBwd backward = backward_of(attention);
  backward.cos_sin = tensor(DType::f32, {9, 2});
  EXPECT_NE(refusal(backward).find("attention_bwd: expected positions exactly with cos_sin"), std::string::npos);
  backward.positions = tensor(DType::i32, {4});
  EXPECT_EQ(refusal(backward), "");
  backward.k = backward.v = backward.dk = backward.dv = tensor(DType::f32, {5, 4});
  EXPECT_NE(refusal(backward).find("attention_bwd.positions: expected as many keys as queries"), std::string::npos);
  backward = backward_of(attention);
  backward.positions = tensor(DType::i32, {4});
  EXPECT_NE(refusal(backward).find("attention_bwd: expected positions exactly with cos_sin"), std::string::npos);
}

// Gradients of Q and K are rotated back in one launch if they are adjacent, otherwise in one launch each.
TEST(InParts, AdjacentGradientsShareOneRopeBackwardLaunch) {
  const Tensor packed = tensor(DType::bf16, {4, 12});
  AttentionBwd op{.dq = packed.columns(0, 4),
                  .dk = packed.columns(4, 8),
                  .dv = packed.columns(8, 12),
                  .shape = {.heads = 2, .kv_heads = 2, .head_dim = 2},
                  .cos_sin = tensor(DType::f32, {9, 2}),
                  .positions = tensor(DType::i32, {4})};
  const auto rotated = [&] {
    std::string heads;
    in_parts(op, [&](const auto& part) {
      if constexpr (std::is_same_v<std::decay_t<decltype(part)>, Rope>) {
        part.check();
        EXPECT_TRUE(part.inverse);
        heads += cat(part.x.shape, " from ", static_cast<char*>(part.x.data) - static_cast<char*>(packed.data), "; ");
      } else {
        EXPECT_FALSE(part.cos_sin || part.positions);
        heads += "plain; ";
      }
    });
    return heads;
  };
  EXPECT_EQ(rotated(), "plain; [4, 8] from 0; ");
  op.dk = op.dv;
  EXPECT_EQ(rotated(), "plain; [4, 4] from 0; [4, 4] from 16; ");
  op.dk = packed.columns(4, 8), op.dk.row_stride = 4;
  EXPECT_EQ(rotated(), "plain; [4, 4] from 0; [4, 4] from 8; ");
  op.cos_sin = {};
  op.positions = {};
  EXPECT_EQ(rotated(), "plain; ");
}

}  // namespace
}  // namespace athanor
