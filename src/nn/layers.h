// Differentiable layers: forward and its vector-Jacobian product stand side by side in one .cc per family.
// Every function consumes its Vars and records its backward on c.tape. Where the ranks of a tensor-parallel group share
// a layer's products, sizes named here are those of one rank's part; of the residual stream a rank has all rows or a
// share (nn/rows.h).
#pragma once
#include <optional>
#include <span>

#include "nn/batch.h"
#include "param/param_store.h"

namespace athanor {

// Parameters of a model together with the context they are used in.
struct Net {
  Ctx& c;
  ParamStore& params;
};

// [in, out] is the order of GPT-2's files (Conv1D), [out, in] that of all others.
enum class WeightOrder : uint8_t { out_in, in_out };
struct Linear {
  Param w;  // [out, in] or [in, out]
  Param b;  // [out], optional
  WeightOrder order = WeightOrder::out_in;
};
struct Norm {
  NormKind kind;
  Param w, b;  // [C]; b for layer norm only; none: a gain of 1
  float eps;
  const Tensor* ones = nullptr;  // [>= C] f32: the gain where there is no w
};

Var embedding(Net, const Batch&, Param wte, Param wpe);  // -> [N, C]; wpe optional
// The embedding of the token before each (Batch::previous), zeros where there is none: -> [N, C]
Var previous_embedding(Net, const Batch&, Param wte);
// x + b sigmoid(gate) z; x optional, z [N, C] of as many groups of columns as gate [N, G] has, b [1] optional: 1.
Var gated_sum(Net, Var x, Var z, Var gate, Param b = {});
// The product's epilogue adds the residual [N, out], optional.
Var linear(Net, Var x, const Linear&, Var residual = {});  // [N, in] -> [N, out]
// -> (h, norm of h). reader: the layer that alone reads the norm, or none; it may want its largest magnitude.
std::pair<Var, Var> fork_norm(Net, Var h, const Norm&, const Linear* reader = nullptr);
// [N, C] -> [N, C], added to residual, which may be absent
Var gelu_mlp(Net, Var x, const Linear& up, const Linear& down, Var residual);
Var swiglu_mlp(Net n, Var x, const Linear& gate_up, const Linear& down, Var residual);  // likewise
// A feed-forward layer of any activation f: down(f(up(x))), or with a gate down(f(gate(x)) up(x)).
struct Mlp {
  Activation f = Activation::silu;
  bool gated = true;
  Linear up;  // [F, C], or gate and up [2F, C]
  Linear down;
};
Var mlp(Net, Var x, const Mlp&, Var residual);  // [N, C] -> [N, C], added to residual
// Experts: feed-forward layers of the form of swiglu_mlp(), of which each token passes the few that a router chooses.
struct Moe {
  Param router;   // [E, C]
  Param bias;     // [layers with experts, E] f32, added to scores for the choice alone; optional
  int64_t row;    // of the bias
  Param gate_up;  // [E 2F, C]: of each expert gate and up
  Param down;     // [E C, F]
  int64_t experts;
  int64_t chosen;  // for each token
  RouterRule rule;
  float balance = 0, z = 0;  // factors of the router's own losses (RouteBwd)
};
Var moe(Net, Var x, const Moe&, int layer, Var residual);  // [N, C] -> [N, C], added to residual
Var qk_norm(Net, Var qkv, const Norm& q, const Norm& k, AttentionShape);
// Rotates q and k in place. Its backward is that of attention() by the same angles, which alone may follow, but for
// what changes v.
Var rope(Net, Var qkv, const Batch&, Tensor cos_sin, AttentionShape);
// rope(linear(x)), in one launch where the backend can
Var rotated_linear(Net, Var x, const Linear& qkv, const Batch&, Tensor cos_sin, AttentionShape);
// [N, (H+2K)D] -> [N, H D]. cos_sin: of rope(), whose backward this includes; none: q and k are not rotated. reader:
// the layer that alone reads the result. sinks [H], optional: AttentionSinks.
Var attention(Net, Var qkv, const Batch&, Tensor cos_sin, AttentionShape, int layer, const Linear& reader,
              Param sinks = {});
Tensor max_attention_logits(const Ctx&, const AttentionShape&,
                            int layer);  // [H] f32, or none: where attention raises them

// Probability with which training drops the branches of a block now; 0 in evaluation.
float drop_rate(const Ctx&, int layer);
// Probability with which training drops elements of embeddings and residual branches; 0 in evaluation.
float hidden_dropout(const Ctx&);
// residual (optional) + branch / (1 - p), where whole sequences, or single elements, drop the branch with probability
// p. The choice is f(seed, name, step, number of the sequence or element in the step).
enum class DropBy : uint8_t { sequence, element };
Var drop_path(Net, Var residual, Var branch, DropBy, float p, const std::string& name);
// The stream after a residual branch: branch(residual) adds the residual itself, branch({}) leaves that to dropout.
// weight: the branch's last one, from whose name the random numbers follow.
template <class Branch>
Var add_branch(Net n, int layer, Var residual, Param weight, Branch&& branch) {
  const float of_sequences = drop_rate(n.c, layer), of_elements = hidden_dropout(n.c);
  if (of_sequences == 0 && of_elements == 0) return branch(std::move(residual));
  const std::string& name = n.params.spec(weight).name;
  Var added = branch(Var{});
  if (of_sequences == 0) return drop_path(n, std::move(residual), std::move(added), DropBy::element, of_elements, name);
  if (of_elements > 0) added = drop_path(n, {}, std::move(added), DropBy::element, of_elements, name);
  return drop_path(n, std::move(residual), std::move(added), DropBy::sequence, of_sequences, name);
}

// LM head and loss in one: computes logits for chunk_rows rows at a time and replaces them in place by their gradient,
// so that [N, V] never exists. Writes losses [N]; with a recording tape also computes the head's gradients. Ranks that
// share the head's rows have logits of their tokens only; losses are whole on every rank.
struct Classifier {
  Param w;        // [Vp, C]
  int64_t vocab;  // V <= Vp, of all ranks
  int64_t chunk_rows;
  Tensor loss_scale;          // [1] f32
  float inv_count;            // 1 / targets in the global batch
  float z_loss = 0;           // see CrossEntropy
  float softcap = 0;          // likewise
  Param b = {};               // [Vp], optional
  Tensor ahead_weights = {};  // [m] f32, of Batch::ahead; without distillation
};
// A frozen model of the same vocabulary, whole on every rank.
struct Teacher {
  ParamStore& params;
  Param w, b;     // its head; b optional
  Buffer x;       // [N, C of the teacher]: its final norm
  float softcap;  // of its logits
};
// The k largest logits of such a model: TopLogits.
struct TeacherLogits {
  Tensor ids;     // [N, k] i32
  Tensor values;  // [N, k] f32
  Tensor rest;    // [N] f32
  size_t bytes() const { return ids ? ids.bytes() + values.bytes() + rest.bytes() : 0; }
};
// What a classifier in training learns besides the text: the distribution of a model that is there, or of one that was.
struct Distillation {
  DistillLoss kind;  // see DistilledCrossEntropy and CachedDistilledCrossEntropy
  float temperature, ce_weight;
  Tensor divergences;  // [N] f32
  std::optional<Teacher> teacher = {};
  TeacherLogits logits = {};  // without a teacher
};
void classifier(Net, Var x, const Batch&, const Classifier&, Tensor losses, const Distillation* = nullptr);
// The k largest logits of every row of x [N, C], by the chunk of rows; no gradient. The head must be whole on this
// rank.
void top_logits(Net, const Buffer& x, const Classifier&, const TeacherLogits& out, float temperature);
// Logits [n, Vp] f32 of chosen rows of x, before any soft-cap; no gradient. The head must be whole on this rank.
Buffer logits(Net, Var x, Tensor rows, Param w, Param b = {});
// The first columns of such logits on the host, soft-capped as in CrossEntropy: out [n, V].
void read_logits(Device&, const Tensor& z, float softcap, int64_t vocab, std::span<float> out);

}  // namespace athanor
