// The three GEMMs of a linear layer, for layers that add epilogues to them: their operands in the layer's precision,
// and the operands that backward keeps. A low-precision layer reads quantized values with scales (tape/recipe.h). Other
// layers read the matrices themselves, for which operands.cc launches and allocates nothing.
#pragma once
#include "nn/layers.h"
#include "nn/rows.h"

namespace athanor {

inline bool out_in(const Linear& layer) { return layer.order == WeightOrder::out_in; }
int64_t outputs_of(Net, const Linear&);  // number of outputs on this rank
// How tensor-parallel ranks split a layer. by_outputs (column-parallel): each rank has some outputs, and input
// gradients are summed over the ranks. by_inputs (row-parallel): each rank has some inputs, and outputs are summed over
// the ranks.
enum class Shared : uint8_t { no, by_outputs, by_inputs };
Shared shared(const ParamStore&, const Linear&);
Shared shared(Net, const Linear&);
// Rows that GEMMs read of the layer's input x and of the gradient dy of its output: all rows (nn/rows.h) if x, or the
// output, belongs to the residual stream; else the tensor itself. If rows are gathered in pieces, the gather may still
// be running, so that the GEMM of one piece overlaps the gather of the next (GemmOperand::coming).
RowsOfAll input_rows(Net, const Linear&, const Buffer& x);
RowsOfAll gradient_rows(Net, const Linear&, const Buffer& dy);
bool in_low_precision(Net, const Linear&);
bool is_frozen(Net, const Linear&);    // a frozen weight has no gradient
bool reads_input(Net, const Linear&);  // backward reads the layer's input: for gradients of weights or adapters
// Returns the [1] f32 to which the op that writes the layer's input, or the gradient of its output, stores the amax for
// the layer; empty if the layer does not need it. The amax of rows that are gathered from other ranks is never known.
Tensor wanted_amax(Net, const Linear&, Matrix);

// A GEMM operand: the matrix itself, or its quantized values with their scales.
struct GemmOperand {
  Buffer data;              // [rows, columns] of the matrix, or of its transpose (`transposed`)
  Buffer scales;            // empty: `data` is the matrix itself
  Buffer global = {};       // FP4: the scale of the whole matrix, [1] f32
  Blocks blocks = {};       // blocks of `data` that share a scale
  bool transposed = false;  // `data` is transposed
  Buffer transposed_copy = {}, transposed_scales = {};  // see QuantizedTensor::transposed_copy
  float outlier = 0;                                    // int8 weight: Int8Gemm::outlier
  RowsOfAll* coming = nullptr;                          // rows of `data` that are still arriving: run() waits for them
  bool is_quantized() const { return bool(scales.t); }
  bool is_int8() const { return data.t.dtype == DType::u8; }  // an int8 weight: Int8Gemm quantizes the other operand
};
// Makes the operand of `matrix`. both: also makes the operand of the weight-gradient GEMM if LayerQuantization::both()
// says so.
GemmOperand operand_of(Net, const Linear&, Operand, const Buffer& matrix, bool both = false);
// Returns the weight as the GEMM of this operand reads it.
GemmOperand weight_operand(Net, const Linear&, Operand);
// Returns the operand of a GEMM that sums over the rows, from a matrix that was quantized both ways.
GemmOperand transpose_of(const GemmOperand&);
// Returns the GEMM operand of the layer's input: all rows of x.
GemmOperand input_operand(Net, const Linear&, const Var& x, const Buffer& all);

// GEMM of the layer, not run yet so that the caller can add an epilogue.
struct LinearGemm {
  Gemm op;
  GemmOperand a, b;
  bool fast = false;  // ScaledGemm::fast
};
void run(Ctx&, const LinearGemm&);
bool fuses(const Ops&, const LinearGemm&);  // true if the backend runs GEMM and epilogue in one launch

// y = x W^T + b (W [out, in]; transposed for [in, out]). In a row-parallel layer y is this rank's partial sum, and only
// the first rank adds b.
LinearGemm output_gemm(Net, const Linear&, Tensor y, const GemmOperand& x);
// Runs y = x W^T + b + residual. In a row-parallel layer y is summed over the ranks, and y and residual are rows of the
// residual stream. h: set to that of run_adapters(), which adds to y, if the layer has adapters.
void run_with_residual(Net, const Linear&, Tensor y, const GemmOperand& x, Tensor residual, Buffer* h = nullptr);
// SwiGLU fused into a layer's output.
struct Gated {
  const Linear& reader;  // the layer that reads y
  Buffer y = {};         // silu(gate) up, if the backend fuses it into the GEMM, else empty
};
// linear() of layers.h with output [gate | up] and no residual. Its backward also accepts the gradient of gated->y.
Var linear(Net, Var x, const Linear&, Gated*);
// Returns the op that rotates q and k of packed qkv [N, (H + 2K) D].
Rope rotation(const Tensor& qkv, const Batch&, Tensor cos_sin, const AttentionShape&, bool inverse);
// dx = dy W. In a column-parallel layer dx is this rank's partial sum.
LinearGemm input_gradient_gemm(Net, const Linear&, Tensor dx, const GemmOperand& dy);
// True if the reduction of input gradients over ranks overlaps the weight-gradient GEMM.
bool overlaps_sums(Net, const Linear&);
// Runs dW += dy^T x and db += column sums of dy, now or in Ctx::weight_half(), unless the layer is frozen. Returns dy
// as the operand of input_gradient_gemm().
GemmOperand run_weight_gradient(Net, const Linear&, const Buffer& dy, const GemmOperand& x);

// Returns all rows of the layer's input, gathered from this rank's own rows while run_gradients() computes.
RowsOfAll overlapped_input_rows(Net, const Linear&, const Buffer& own);
// Runs run_weight_gradient(), the GEMM of the input gradient and, with h, run_adapter_gradients(). Returns dx [in], an
// arena block called `name`; in a column-parallel layer it is summed over the ranks and has rows of the residual
// stream. Frees x as soon as nothing reads it; with overlaps_sums() x may be passed as `later` instead.
Buffer run_gradients(Net, const Linear&, std::string_view name, const Shape& in, RowsOfAll dy, GemmOperand x,
                     RowsOfAll* later = nullptr, const Tensor& h = {});

// Returns the weight-gradient GEMM's operand made of the layer's input x. `forward`: the operand of x in forward.
GemmOperand operand_of_weight_gradient(Net, const Linear&, const Buffer& x, const GemmOperand& forward);

// Operand of the layer's input, kept from forward to backward.
class SavedInput {
 public:
  static bool keeps_quantized(Net, const Linear&, const Var& x);  // true if forward also quantizes x for backward
  SavedInput(Net, const Linear&, const Var& x, const GemmOperand& forward);
  GemmOperand get(Net, const Linear&) const;
  Buffer own_rows(Ctx& c) const { return matrix_.get(c); }  // this rank's rows of x; not for quantized layers

 private:
  Saved matrix_;
  GemmOperand quantized_;
};

}  // namespace athanor
