// Differentiable layers: each .cc has forward and backward of one family. Each function consumes its Vars and records
// its backward on c.tape. With tensor parallelism the sizes named here are those of one rank's part. A rank has all
// rows of the residual stream or, with sequence parallelism, a shard of them (nn/rows.h).
#pragma once
#include <optional>
#include <span>

#include "nn/batch.h"
#include "param/param_store.h"

namespace athanor {

// Parameters of a model, and the context in which layers use them.
struct Net {
  Ctx& c;
  ParamStore& params;
};

// GPT-2's files (Conv1D) store [in, out], all others [out, in].
enum class WeightOrder : uint8_t { out_in, in_out };
struct Linear {
  Param w;  // [out, in] or [in, out]
  Param b;  // [out], optional
  WeightOrder order = WeightOrder::out_in;
};
struct Norm {
  NormKind kind;
  Param w, b;  // [C]; b for layer norm only; no w: gain 1
  float eps;
  const Tensor* ones = nullptr;  // [>= C] f32 ones, used as the gain if there is no w
};

Var embedding(Net, const Batch&, Param wte, Param wpe);  // -> [N, C]; wpe optional
// How images become the inputs of a linear layer, see Patchify.
struct ImagePatches {
  PatchShape shape;
  std::array<float, kMaxImageChannels> scale = {}, shift = {};
};
// Patches of Batch::pixels times the projection [C, columns], plus two table rows: of `kinds` [2, C] the one that
// Batch::tokens names (0 for a patch: the bias; 1 for the class token), and of `positions` the token's. -> [N, C]
Var patch_embedding(Net, const Batch&, const ImagePatches&, const Linear& projection, Param kinds, Param positions);
// Embedding of the preceding token (Batch::previous), zeros if there is none: -> [N, C]
Var previous_embedding(Net, const Batch&, Param wte);
// x + b sigmoid(gate) z. x is optional; z [N, C] has as many groups of columns as gate [N, G]; b [1] is 1 if absent.
Var gated_sum(Net, Var x, Var z, Var gate, Param b = {});
// Adds the residual [N, out], optional, in the GEMM's epilogue.
Var linear(Net, Var x, const Linear&, Var residual = {});  // [N, in] -> [N, out]
// -> (h, norm of h). reader: the only layer that reads the norm, or null; the reader may need the norm's amax.
std::pair<Var, Var> fork_norm(Net, Var h, const Norm&, const Linear* reader = nullptr);
// Ends the residual stream after a norm that is its only reader: returns the norm; the gradient of the residual is
// zero.
Var finish(Ctx&, std::pair<Var, Var> residual_and_norm);
// [N, C] -> [N, C], added to residual, which may be absent
Var gelu_mlp(Net, Var x, const Linear& up, const Linear& down, Var residual);
Var swiglu_mlp(Net n, Var x, const Linear& gate_up, const Linear& down, Var residual);  // same shapes as gelu_mlp()
// A feed-forward layer with any activation f: down(f(up(x))), or gated: down(f(gate(x)) up(x)).
struct Mlp {
  Activation f = Activation::silu;
  bool gated = true;
  Linear up;  // [F, C], or gate and up [2F, C]
  Linear down;
};
Var mlp(Net, Var x, const Mlp&, Var residual);  // [N, C] -> [N, C], added to residual
// Mixture of experts: feed-forward layers like swiglu_mlp(); a router chooses a few of them for each token.
struct Moe {
  Param router;   // [E, C]
  Param bias;     // [layers with experts, E] f32, added to scores only for choosing experts; optional
  int64_t row;    // this layer's row of `bias`
  Param gate_up;  // [E 2F, C]: gate and up of each expert
  Param down;     // [E C, F]
  int64_t experts;
  int64_t chosen;  // experts per token
  RouterRule rule;
  float balance = 0, z = 0;  // weights of the router's own losses (RouteBwd)
  // GPT-OSS has biases of the router [E] and of the experts [E 2F], [E C], and the limit of its clamped activation;
  // elsewhere the biases are absent, limit is 0, and the activation is SwiGLU.
  Param router_b = {}, gate_up_b = {}, down_b = {};
  float limit = 0;
};
// [N, C] -> [N, C], added to residual or, if `shared` is given, to shared(residual), which adds the shared experts.
// These compute while rows are exchanged with other ranks.
Var moe(Net, Var x, const Moe&, int layer, Var residual, UniqueFn<Var(Var)> shared = {});
// RMSNorm of each head of q and k, or of all their heads as one, of which tensor-parallel ranks have parts.
enum class HeadsOfNorm : uint8_t { each, all_as_one };
Var qk_norm(Net, Var qkv, const Norm& q, const Norm& k, AttentionShape, HeadsOfNorm);
// Rotates q and k in place. The backward of attention() with the same angles includes the inverse rotation, so rope()
// may only be followed by attention(), or by layers that change only v.
Var rope(Net, Var qkv, const Batch&, Tensor cos_sin, AttentionShape);
// rope(linear(x)), in one launch if the backend fuses them.
Var rotated_linear(Net, Var x, const Linear& qkv, const Batch&, Tensor cos_sin, AttentionShape);
// [N, (H+2K)D] -> [N, H D]. cos_sin: angles of rope(), whose backward is included here; empty: q and k are not rotated.
// reader: the only layer that reads the result. sinks: [H], optional, see AttentionSinks.
Var attention(Net, Var qkv, const Batch&, Tensor cos_sin, AttentionShape, int layer, const Linear& reader,
              Param sinks = {});
Tensor max_attention_logits(const Ctx&, const AttentionShape&,
                            int layer);  // [H] f32: running max of logits; or empty

// Returns the current drop probability of a block's branches in training; 0 in evaluation.
float drop_rate(const Ctx&, int layer);
// Returns the probability with which training drops elements of embeddings and residual branches; 0 in evaluation.
float hidden_dropout(const Ctx&);
// Runs the op with the step's random numbers: all of its fields are given but state, first, seed and rows. own_rows:
// its matrices have this rank's rows of the residual stream, not all rows (nn/rows.h).
void run_drop_path(Ctx&, DropPath, bool own_rows = true);
// residual (optional) + branch / (1 - p), where the branch is dropped for whole sequences, or for single elements, with
// probability p. The random choice depends on (seed, name, step, index of the sequence or element in the step).
enum class DropBy : uint8_t { sequence, element };
Var drop_path(Net, Var residual, Var branch, DropBy, float p, const std::string& name);
// Returns the residual stream after a branch: branch(residual) adds the residual itself; with branch({}) drop_path()
// adds it. weight: the branch's last weight, whose name selects the random numbers.
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
// so that [N, V] never exists. Writes losses [N]; with a recording tape also computes the head's gradients. With a
// vocabulary-parallel head a rank has only the logits of its tokens of the vocabulary; losses are complete on each
// rank.
struct Classifier {
  Param w;        // [Vp, C]
  int64_t vocab;  // V <= Vp, over all ranks
  int64_t chunk_rows;
  Tensor loss_scale;          // [1] f32
  float inv_count;            // 1 / targets in the global batch
  float z_loss = 0;           // see CrossEntropy
  float softcap = 0;          // see CrossEntropy
  Param b = {};               // [Vp], optional
  Tensor ahead_weights = {};  // [m] f32: weights of the losses of Batch::ahead
};
// A frozen teacher with the same vocabulary, complete on each rank.
struct Teacher {
  ParamStore& params;
  Param w, b;     // its LM head; b optional
  Buffer x;       // [N, C of the teacher]: output of its final norm
  float softcap;  // soft-cap of the teacher's logits
};
// The teacher's k largest logits from a cache: see TopLogits.
struct TeacherLogits {
  Tensor ids;     // [N, k] i32
  Tensor values;  // [N, k] f32
  Tensor rest;    // [N] f32
  size_t bytes() const { return ids ? ids.bytes() + values.bytes() + rest.bytes() : 0; }
};
// Distillation: the loss against a teacher, which is a loaded model or cached logits.
struct Distillation {
  DistillLoss kind;  // see DistilledCrossEntropy and CachedDistilledCrossEntropy
  float temperature, ce_weight;
  Tensor divergences;  // [N] f32
  std::optional<Teacher> teacher = {};
  TeacherLogits logits = {};  // used if there is no teacher
};
void classifier(Net, Var x, const Batch&, const Classifier&, Tensor losses, const Distillation* = nullptr);
// Writes the k largest logits of each row of x [N, C], chunk by chunk; no gradient. This rank must have the whole head.
void top_logits(Net, const Buffer& x, const Classifier&, const TeacherLogits& out, float temperature);
// Returns logits [n, Vp] f32 of chosen rows of x, before any soft-cap; no gradient. This rank must have the whole head.
Buffer logits(Net, Var x, Tensor rows, Param w, Param b = {});
// Copies the first V columns of the result of logits() to the host and soft-caps them as CrossEntropy does: out [n, V].
void read_logits(Device&, const Tensor& z, float softcap, int64_t vocab, std::span<float> out);

}  // namespace athanor
