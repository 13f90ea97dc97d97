// The three products of a linear layer, for the layers that give them epilogues: what they read, in the layer's own
// precision, and what of it backward keeps. A layer in 8 bits reads codes with scales (tape/recipe.h); any other reads
// the matrices themselves, and for it nothing here launches or allocates.
#pragma once
#include "nn/layers.h"
#include "nn/rows.h"

namespace athanor {

int64_t outputs_of(Net, const Linear&);  // of this rank
// How the ranks of a tensor-parallel group share a layer: each has some of its outputs, so that gradients of its inputs
// are summed over them, or some of its inputs, so that its outputs are.
enum class Shared : uint8_t { no, by_outputs, by_inputs };
Shared shared(const ParamStore&, const Linear&);
Shared shared(Net, const Linear&);
// What products read of the layer's input x and of the gradient of its output: all rows (nn/rows.h) where x, or the
// output, is of the residual stream; else the tensor itself. They are still on their way where a product with the rows
// of the first piece hides those of the second.
RowsOfAll input_rows(Net, const Linear&, const Buffer& x);
RowsOfAll gradient_rows(Net, const Linear&, const Buffer& dy);
bool in_low_precision(Net, const Linear&);
bool is_frozen(Net, const Linear&);  // then there is no gradient of the weight
// Where the layer wants the largest magnitude of its input, or of the gradient of its output, left by whoever makes it,
// [1] f32; none: it does not need it. Rows that are gathered from other ranks are another matrix, of which none is
// known.
Tensor wanted_largest(Net, const Linear&, Matrix);

// What a product reads of a matrix: itself, or its codes.
struct Factor {
  Buffer data;         // of the matrix's shape; turned: of its transpose's
  Buffer scales;       // of codes
  Buffer global = {};  // of codes of 4 bits: one more scale, of the matrix
  Blocks blocks = {};  // of `data`
  bool turned = false;
  Buffer beside = {}, beside_scales = {};  // as of Codes
  RowsOfAll* coming = nullptr;             // rows of `data` that are still on their way: run() waits for them
  bool is_codes() const { return bool(scales.t); }
};
// both: what the gradient of the weight reads is made beside, where LayerCodes::both() says so.
Factor factor(Net, const Linear&, Operand, const Buffer& matrix, bool both = false);
// The GEMM operand of the layer's input: all rows of x.
Factor input_factor(Net, const Linear&, const Var& x, const Buffer& all);

// A product to be run, to which an epilogue may be given before.
struct Product {
  Gemm op;
  Factor a, b;
  bool fast = false;  // ScaledGemm::fast
};
void run(Ctx&, const Product&);

// y = x W^T + b (W [out, in]; transposed for [in, out]). Shared by inputs, y is a rank's part of the sum, and the first
// rank's has b.
Product linear_product(Net, const Linear&, Tensor y, const Factor& x);
// y = x W^T + b + residual; shared by inputs, summed over the ranks, and y and residual are of the residual stream
void run_with_residual(Net, const Linear&, Tensor y, const Factor& x, Tensor residual);
// SwiGLU behind a product.
struct Gated {
  const Linear& reader;  // of y
  Buffer y = {};         // silu(gate) up, if the backend computes it in the product's launch, else none
};
// linear() of layers.h whose output is [gate | up], without a residual. Its gradient may be that of y instead.
Var linear(Net, Var x, const Linear&, Gated*);
// The op that turns q and k of packed [N, (H + 2K) D].
Rope rotation(const Tensor& qkv, const Batch&, Tensor cos_sin, const AttentionShape&, bool inverse);
// dx = dy W. Shared by outputs, dx is a rank's part of the sum.
Product input_gradient(Net, const Linear&, Tensor dx, const Factor& dy);
// Computes dx like input_gradient(), for a layer cut by outputs: summed over the ranks, and dx is of the residual
// stream.
void run_input_gradient(Net, const Linear&, Tensor dx, const Factor& dy);
// Whether sums of input gradients run beside the product of the weight's.
bool sums_beside(Net, const Linear&);
// dW += dy^T x, db += column sums of dy, unless the layer is frozen; gives back what input_gradient() reads of dy.
Factor run_weight_gradient(Net, const Linear&, const Buffer& dy, const Factor& x);

// The layer's input, of which backward has this rank's rows, on its way to run_gradients().
RowsOfAll input_rows_beside(Net, const Linear&, const Buffer& own);
// dW += dy^T x, and dx [in] = dy W as run_input_gradient() has it, called `name`. x is let go as soon as nobody reads
// it; with sums_beside() it may come later.
Buffer run_gradients(Net, const Linear&, std::string_view name, const Shape& in, RowsOfAll dy, Factor x,
                     RowsOfAll* later = nullptr);

// What the gradient of the weight reads of the layer's input, made while `forward`, which the output was made of, is
// there.
Factor weight_factor(Net, const Linear&, const Buffer& x, const Factor& forward);

// The operand of the layer's input, kept from forward to backward.
class SavedInput {
 public:
  static bool keeps_codes(Net, const Linear&, const Var& x);  // made with those of the forward product
  SavedInput(Net, const Linear&, const Var& x, const Factor& forward);
  Factor get(Net, const Linear&) const;
  Buffer own_rows(Ctx& c) const { return matrix_.get(c); }  // of the matrix, where the layer has no codes

 private:
  Saved matrix_;
  Factor codes_;
};

}  // namespace athanor
